"""The collectives that wait, and through which gradients flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hocket.horovod.basics import Average, Sum, op_of, rank
from hocket.horovod.process_sets import ProcessSet, global_process_set, member
from hocket.horovod.torch import calls
from hocket.horovod.torch.compression import Compression
from hocket.horovod.torch.tensors import checked

Tensor = torch.Tensor
Function: Any = torch.autograd.Function


class _Allreduce(Function):  # type: ignore[misc]
    """The gradient of a sum is the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], name: str | None, grouped: bool, codec: str, *tensors: Tensor) -> Any:
        op, pre, post, process_set = ctx.how = how
        made = calls.reduced(tensors, name, op, pre, post, process_set, grouped, codec=codec, waits=True).wait()
        return tuple(made) if grouped else made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        op, pre, post, process_set = ctx.how
        return (None, None, None, None, *grouped_allreduce(
            grads, op=op, prescale_factor=pre, postscale_factor=post, process_set=process_set))  # fmt: skip


def allreduce(
    tensor: Tensor, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
    op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:  # fmt: skip
    """Call allreduce_async, and wait."""
    small, ctx = compression.compress(tensor)
    how = op_of(average, op), prescale_factor, postscale_factor, process_set
    found = _Allreduce.apply(how, name, False, getattr(compression, "codec", ""), small)
    made: Tensor = compression.decompress(found, ctx)
    return made


def grouped_allreduce(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None,
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:  # fmt: skip
    """Call grouped_allreduce_async, and wait."""
    small = [compression.compress(each) for each in tensors]
    how = op_of(average, op), prescale_factor, postscale_factor, process_set
    codec = getattr(compression, "codec", "")
    found = _Allreduce.apply(how, name, True, codec, *(each for each, _ in small))
    return [compression.decompress(each, ctx) for each, (_, ctx) in zip(found, small, strict=True)]


def allreduce_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Tensor:  # fmt: skip
    """Call allreduce_async_, and wait."""
    how = op_of(average, op), prescale_factor, postscale_factor, process_set
    made: Tensor = calls.reduced([tensor], name, *how, in_place=True, waits=True).wait()
    return made


def grouped_allreduce_(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> list[Tensor]:  # fmt: skip
    """Call grouped_allreduce_async_, and wait."""
    how = op_of(average, op), prescale_factor, postscale_factor, process_set
    made: list[Tensor] = calls.reduced(list(tensors), name, *how, True, True, waits=True).wait()
    return made


class _Allgather(Function):  # type: ignore[misc]
    """Each rank's rows are in all results: their gradient is the mean over the ranks, as in Horovod."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, grouped: bool, *tensors: Tensor) -> Any:
        made = calls.grouped_allgather_async(tensors, name, process_set, True, grouped).wait()
        ctx.rows, ctx.process_set = [each.shape[0] for each in tensors], process_set
        return tuple(made) if grouped else made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        process_set = ctx.process_set
        means = grouped_allreduce(grads, op=Average, process_set=process_set)
        rows = allgather(torch.tensor([ctx.rows]), process_set=process_set)
        first = rows[: member(process_set).rank].sum(0).tolist()
        mine = [mean.narrow(0, at, n) for mean, at, n in zip(means, first, ctx.rows, strict=True)]
        return (None, None, None, *mine)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Call allgather_async, and wait."""
    made: Tensor = _Allgather.apply(name, process_set, False, tensor)
    return made


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Call grouped_allgather_async, and wait."""
    return list(_Allgather.apply(name, process_set, True, *tensors))


class _Broadcast(Function):  # type: ignore[misc]
    """Only the root's tensor has a gradient: the mean over the ranks, as in Horovod."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root, ctx.process_set = root_rank, process_set
        output = torch.empty_like(checked(tensor, "broadcast"), memory_format=torch.contiguous_format)
        return calls.sent(tensor, output, root_rank, name, process_set, True).wait()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        mean = allreduce(grad, op=Average, process_set=ctx.process_set)
        return (mean if rank() == ctx.root else mean * 0), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Call broadcast_async, and wait."""
    made: Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return made


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Call broadcast_async_, and wait."""
    made: Tensor = calls.sent(tensor, checked(tensor, "broadcast"), root_rank, name, process_set, True).wait()
    return made


class _Alltoall(Function):  # type: ignore[misc]
    """Gradients go back the way that the rows came."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        made, rows = calls.alltoall_async(tensor, splits, name, process_set, True).wait()
        ctx.rows, ctx.process_set, ctx.left = rows, process_set, tensor.shape[0]
        ctx.mark_non_differentiable(rows)
        return made, rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        back, _ = calls.alltoall_async(grad.contiguous(), ctx.rows, None, ctx.process_set, True).wait()
        if back.shape[0] < ctx.left:  # rows that went to no rank
            back = torch.cat([back, back.new_zeros((ctx.left - back.shape[0], *back.shape[1:]))])
        return back, None, None, None


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Call alltoall_async, and wait.  Without splits the rows alone are returned."""
    made, rows = _Alltoall.apply(tensor, splits, name, process_set)
    return made if splits is None else (made, rows)


class _Reducescatter(Function):  # type: ignore[misc]
    """Gradients are gathered; with op Sum times the ranks, as in Horovod."""

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], name: str | None, grouped: bool, *tensors: Tensor) -> Any:
        op, pre, post, process_set = ctx.how = how
        made = calls.grouped_reducescatter_async(tensors, name, op, process_set, pre, post, True, grouped).wait()
        return tuple(made) if grouped else made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        op, pre, post, process_set = ctx.how
        factor = pre * post * (member(process_set).size if op == Sum else 1)
        scaled = [grad * factor if factor != 1 else grad for grad in grads]
        return (None, None, None, *grouped_allgather(scaled, process_set=process_set))


def reducescatter(
    tensor: Tensor, name: str | None = None, compression: Any = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> Tensor:  # fmt: skip
    """Call reducescatter_async, and wait."""
    small, ctx = compression.compress(tensor)
    found = _Reducescatter.apply((op, prescale_factor, postscale_factor, process_set), name, False, small)
    made: Tensor = compression.decompress(found, ctx)
    return made


def grouped_reducescatter(
    tensors: Sequence[Tensor], name: str | None = None, compression: Any = Compression.none, op: int = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
) -> list[Tensor]:  # fmt: skip
    """Call grouped_reducescatter_async, and wait."""
    small = [compression.compress(each) for each in tensors]
    how = op, prescale_factor, postscale_factor, process_set
    found = _Reducescatter.apply(how, name, True, *(each for each, _ in small))
    return [compression.decompress(each, ctx) for each, (_, ctx) in zip(found, small, strict=True)]
