"""Parameters, the state of an optimizer and Python objects, from one rank to all or from all to all."""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hocket.errors import ArgumentError
from hocket.horovod import job, plain
from hocket.horovod.basics import rank
from hocket.horovod.process_sets import ProcessSet, global_process_set, member
from hocket.horovod.torch.autograd import allgather, broadcast_
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

    Tensors go as they are, numbers, texts, lists and dicts as JSON; only what else there may be is pickled.  In the
    state an OrderedDict and the like become dicts, and named tuples become tuples.  Where the root has no state yet,
    the parameters get gradients of zeros if they have none, as with Horovod.  `model` is not needed.  ValueError:
    L-BFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError("hvd.broadcast_optimizer_state: the state of torch.optim.LBFGS cannot be broadcast")
    tensors: list[Tensor] = []

    def outlined(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return _pickled_text(value)
        tensors.append(value.detach())
        return [str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type]

    def allocated(outline: Any) -> Any:
        if isinstance(outline, str):
            return _unpickled_text(outline)
        dtype, shape, kind = outline
        device = f"cuda:{torch.cuda.current_device()}" if kind == "cuda" else kind
        tensors.append(torch.empty(shape, dtype=getattr(torch, dtype), device=device))
        return tensors[-1]

    mine, state = rank() == root_rank, optimizer.state_dict()
    bare = {**state, "state": _bare(state["state"])}
    frame = _broadcast_text(plain.text(bare, outlined) if mine else "", root_rank, "optimizer_state", process_set)
    if not mine:
        state = plain.value(frame, allocated)
    named = [(f"optimizer_state.{i}", each) for i, each in enumerate(tensors)]
    broadcast_parameters(named, root_rank, process_set)
    if not mine:
        optimizer.load_state_dict(state)
    if not state["state"]:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.requires_grad and p.grad is None and not p.is_sparse:
                p.grad = torch.zeros_like(p)


def _bare(value: Any) -> Any:
    """`value` with plain dicts and tuples: load_state_dict makes them of derived dicts, and fails with named tuples."""
    if isinstance(value, dict):
        return {key: _bare(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    return list(map(_bare, value)) if type(value) is list else value


def broadcast_values(
    values: Any, root_rank: int = 0, name: str = "values", process_set: ProcessSet = global_process_set
) -> Any:
    """A broadcast_object that pickles only what JSON lacks (`hocket.horovod.plain`)."""
    mine = rank() == root_rank
    text = _broadcast_text(plain.text(values, _pickled_text) if mine else "", root_rank, name, process_set)
    return values if mine else plain.value(text, _unpickled_text)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str = "object", process_set: ProcessSet = global_process_set
) -> Any:
    """Rank `root_rank`'s object, on all ranks.  It is pickled (by cloudpickle where that is installed).

    HOCKET_OBJECTS=0 refuses it, as who unpickles runs what the sender wrote.
    """
    mine = rank() == root_rank
    data = _broadcast_bytes(_pickled(obj) if mine else None, root_rank, name, process_set)
    return obj if mine else _unpickled(data)


def allgather_object(obj: Any, name: str = "object", process_set: ProcessSet = global_process_set) -> list[Any]:
    """All ranks' objects, in rank order."""
    data = _pickled(obj)
    lengths = allgather(torch.tensor([data.numel()]), f"{name}.length", process_set)
    every = allgather(data, f"{name}.data", process_set)
    here = member(process_set).rank
    parts = torch.split(every, lengths.tolist())
    return [obj if r == here else _unpickled(part) for r, part in enumerate(parts)]


def _broadcast_text(text: str, root_rank: int, name: str, process_set: ProcessSet) -> str:
    data = _tensor(text.encode()) if rank() == root_rank else None
    return _broadcast_bytes(data, root_rank, name, process_set).numpy().tobytes().decode()


def _broadcast_bytes(data: Tensor | None, root_rank: int, name: str, process_set: ProcessSet) -> Tensor:
    """The root's bytes, on all ranks; the others give None."""
    length = torch.tensor([0 if data is None else data.numel()])
    broadcast_(length, root_rank, f"{name}.length", process_set)
    if data is None:
        data = torch.empty(int(length), dtype=torch.uint8)
    return broadcast_(data, root_rank, f"{name}.data", process_set)


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _pickled_text(obj: Any) -> str:
    return base64.b64encode(_pickled(obj).numpy().tobytes()).decode()


def _unpickled_text(text: str) -> Any:
    return _unpickled(_tensor(base64.b64decode(text)))


def _allowed() -> None:
    if not job.current().comm.config.objects:
        raise ArgumentError("this job refuses objects (HOCKET_OBJECTS=0): send tensors")


def _pickled(obj: Any) -> Tensor:
    _allowed()
    try:
        import cloudpickle
    except ImportError:
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    else:
        data = cloudpickle.dumps(obj)
    return _tensor(data)


def _unpickled(data: Tensor) -> Any:
    _allowed()
    return pickle.load(io.BytesIO(data.numpy().tobytes()))
