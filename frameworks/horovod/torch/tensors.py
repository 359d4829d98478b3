"""torch's tensors as hocket takes them, and what is told of them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from hocket.errors import ArgumentError
from hocket.extending import TORCH_NAMES
from hocket.training.agreeing import Spec

Tensor = torch.Tensor
_DTYPES = frozenset(getattr(torch, name.removeprefix("torch.")) for name in TORCH_NAMES)


class Tensors(NamedTuple):
    """The tensors of a request.  `outputs`: where results go; None where their shape is not known yet."""

    inputs: list[Tensor]
    outputs: list[Tensor | None]
    grouped: bool
    event: Any = None
    """The event of the stream in which CUDA tensors are made."""
    rates: tuple[float | None, ...] = ()
    """The learning rates that the results will be multiplied by, where they are known."""

    def result(self, made: list[Any]) -> Any:
        """The result of the handle."""
        return made if self.grouped else made[0]


def checked(tensor: Any, call: str) -> Tensor:
    """`tensor`, which must be a dense torch tensor with memory of its own."""
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"hvd.{call}: a torch tensor is needed, got a {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise ArgumentError(f"hvd.{call}: a sparse tensor goes through hvd.sparse_allreduce_async, or as to_dense()")
    if tensor.is_meta:
        raise ArgumentError(f"hvd.{call}: a meta tensor has no data")
    if tensor.is_quantized:
        raise ArgumentError(f"hvd.{call}: the scale of a quantised tensor is not sent; pass tensor.int_repr()")
    return tensor


def part(tensor: Tensor) -> Spec:
    """The part of a tensor that other ranks are told."""
    return Spec(_name(tensor.dtype), tuple(tensor.shape))


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def reducible(tensor: Tensor, call: str) -> Tensor:
    """`tensor`, if hocket can add up its dtype."""
    if tensor.dtype not in _DTYPES:
        raise ArgumentError(f"hvd.{call}: {tensor.dtype} is not a dtype that can be reduced")
    return tensor


def flat(tensor: Tensor) -> Tensor:
    """A tensor's values in one row, for calls that only move them: as bytes where hocket does not know the dtype."""
    row = tensor.detach().contiguous().reshape(-1)
    return row if str(row.dtype) in TORCH_NAMES else row.view(torch.uint8)


def row_unit(tensor: Tensor) -> int:
    """The number of elements of `flat(tensor)` that are a row of `tensor`."""
    row = tensor[0].numel() if tensor.shape[0] else tensor.new_empty((1, *tensor.shape[1:])).numel()
    return row if str(tensor.dtype) in TORCH_NAMES else row * tensor.element_size()


def scaled_(tensor: Tensor, factor: float) -> None:
    """Multiply in place: integers in float64, rounded toward zero, as Horovod does; 16-bit floats in float32."""
    if factor == 1.0:
        return
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.double().mul_(factor))


def mark(inputs: list[Tensor]) -> Any:
    """For CUDA tensors: the point in the current stream at which they are made."""
    on_gpu = next((each for each in inputs if each.is_cuda), None)
    return None if on_gpu is None else torch.cuda.current_stream(on_gpu.device).record_event()
