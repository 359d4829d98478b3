"""Keras on torch: the optimizer is called eagerly, with the parameters' own gradients, which are averaged in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hocket.errors import Error

stale = False


@torch.no_grad()
def averages(averaging: Any, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
    comm, flags = averaging.comm, averaging.flags(grads, variables)
    tensors = [
        torch.zeros_like(variable.value) if grad is None else _own(grad, variable)
        for grad, variable in zip(grads, variables, strict=True)
    ]
    own = torch.from_numpy(flags.values.copy())
    floats = [i for i, each in enumerate(tensors) if averaging.compressing is not None and each.dtype == torch.float32]
    plain = [each for i, each in enumerate(tensors) if i not in set(floats)]
    if any(each.device.type != "cpu" for each in plain):
        comm.allreduce(plain, "avg")
        plain = []
    with flags.named():
        comm.allreduce([*plain, own], "avg")
    flags.check(own.numpy(), comm)
    if floats:
        names = [flags.names[i] for i in floats]
        averaging.compressing.average([tensors[i] for i in floats], names, float(averaging.rate()))
    return [None if grad is None else mean for grad, mean in zip(grads, tensors, strict=True)]


def _own(grad: Any, variable: Any) -> Any:
    """The gradient, if it is the parameter's own; else a copy: another gradient, or the user, may have this memory."""
    if grad is variable.value.grad and grad.is_contiguous() and not grad.is_sparse:
        return grad
    return (grad.to_dense() if grad.is_sparse else grad).clone(memory_format=torch.contiguous_format)


def check_compress(compress: str | None) -> None:
    """All methods work."""


def problem(model: Any) -> str:
    return ""


def cause(error: BaseException) -> Error | None:
    return error if isinstance(error, Error) else None
