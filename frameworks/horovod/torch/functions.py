"""Parameters, the state of an optimizer and Python objects, from one rank to all or from all to all."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hocket.errors import ArgumentError
from hocket.horovod import job
from hocket.horovod.process_sets import ProcessSet, global_process_set, member
from hocket.horovod.torch.autograd import allgather, broadcast_
from hocket.horovod.torch.basics import rank
from hocket.horovod.torch.calls import broadcast_async_, synchronize

Tensor = torch.Tensor
Handle = Any


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Give rank `root_rank`'s values to all ranks, in place.

    `params`: `model.state_dict()` (of which the tensors), `model.named_parameters()`, or a list of tensors.
    """
    if isinstance(params, Mapping):
        pairs: list[tuple[str | None, Any]] = [(key, each) for key, each in sorted(params.items())]
    elif isinstance(params, Iterable) and not isinstance(params, (str, Tensor)):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ArgumentError(f"hvd.broadcast_parameters: params must be a dict or a list, not a {type(params).__name__}")
    tensors = [(name, each) for name, each in pairs if isinstance(each, Tensor)]
    handles = [broadcast_async_(each.detach(), root_rank, name, process_set) for name, each in tensors]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:  # fmt: skip
    """Give rank `root_rank`'s options and state to all ranks; those of the others may be empty or different.

    The options and the state's shapes are pickled, its tensors go as they are.  Where the root has no state yet, the
    parameters get gradients of zeros if they have none, as with Horovod.  `model` is not needed.  ValueError: L-BFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError("hvd.broadcast_optimizer_state: the state of torch.optim.LBFGS cannot be broadcast")
    mine = optimizer.state_dict() if rank() == root_rank else None
    tensors: list[Tensor] = []
    frame = broadcast_object(_frame(mine, tensors), root_rank, "optimizer_state", process_set)
    if mine is None:
        state = _filled(frame, tensors)
    named = [(f"optimizer_state.{i}", each) for i, each in enumerate(tensors)]
    broadcast_parameters(named, root_rank, process_set)
    if mine is None:
        optimizer.load_state_dict(state)
    if not frame["state"]:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.requires_grad and p.grad is None and not p.is_sparse:
                p.grad = torch.zeros_like(p)


class _Place:
    """Where a tensor was."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)
        self.device = tensor.device.type


def _frame(value: Any, tensors: list[Tensor]) -> Any:
    """`value` without its tensors, which are added to `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return _Place(value)
    if isinstance(value, dict):
        return {key: _frame(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_frame(each, tensors) for each in value)
    return value


def _filled(value: Any, tensors: list[Tensor]) -> Any:
    """What `_frame` had, with new tensors, which are added to `tensors`."""
    if isinstance(value, _Place):
        device = f"cuda:{torch.cuda.current_device()}" if value.device == "cuda" else value.device
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=device))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _filled(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled(each, tensors) for each in value)
    return value


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str = "object", process_set: ProcessSet = global_process_set
) -> Any:
    """Rank `root_rank`'s object, on all ranks.  It is pickled (by cloudpickle where that is installed).

    HOCKET_OBJECTS=0 refuses it, as who unpickles runs what the sender wrote.
    """
    mine = rank() == root_rank
    data = _pickled(obj) if mine else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([data.numel()])
    broadcast_(length, root_rank, f"{name}.length", process_set)
    if not mine:
        data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank, f"{name}.data", process_set)
    return obj if mine else _unpickled(data)


def allgather_object(obj: Any, name: str = "object", process_set: ProcessSet = global_process_set) -> list[Any]:
    """All ranks' objects, in rank order."""
    data = _pickled(obj)
    lengths = allgather(torch.tensor([data.numel()]), f"{name}.length", process_set)
    every = allgather(data, f"{name}.data", process_set)
    here = member(process_set).rank
    parts = torch.split(every, lengths.tolist())
    return [obj if r == here else _unpickled(part) for r, part in enumerate(parts)]


def _pickled(obj: Any) -> Tensor:
    if not job.current().world.world.config.objects:
        raise ArgumentError("this job refuses objects (HOCKET_OBJECTS=0): send tensors")
    try:
        import cloudpickle
    except ImportError:
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    else:
        data = cloudpickle.dumps(obj)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpickled(data: Tensor) -> Any:
    return pickle.load(io.BytesIO(data.numpy().tobytes()))
