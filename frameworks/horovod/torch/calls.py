"""The collectives that return a handle; poll, synchronize, join and barrier.

Ranks call them in any order: tensors are matched by name.  Those without a name get one by counting, so their order
matters.  A tensor of the same name, dtype and shape comes from every rank of the process set; if not, all of them raise
HorovodInternalError, when they wait for it.  ValueError (hocket.ArgumentError): this rank's call is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hocket.compression.entries import Rate
from hocket.errors import ArgumentError
from hocket.horovod.basics import OPS, Average, Sum, op_of
from hocket.horovod.exceptions import HorovodInternalError
from hocket.horovod.process_sets import ProcessSet, global_process_set, member
from hocket.horovod.torch.tensors import Tensor, Tensors, checked, mark, part, reducible
from hocket.training.agreeing import Pending, Request

Handle = Pending
"""A collective under way: for `poll` and `synchronize`."""


def submit(
    kind: str, name: str | None, tensors: Sequence[Tensor], outputs: Sequence[Tensor | None], process_set: ProcessSet,
    grouped: bool = False, waits: bool = False, rates: tuple[Rate, ...] = (), **fields: Any,
) -> Handle:  # fmt: skip
    """Note a collective.  `waits`: the caller waits for it at once."""
    part_of = member(process_set)
    full = f"{kind}.{name}" if name is not None else part_of.name(kind)
    request = Request(kind, full, tuple(map(part, tensors)), **fields)
    inputs = list(tensors)
    return part_of.submit(request, Tensors(inputs, list(outputs), grouped, mark(inputs), rates), waits)


def reduced(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet,
    grouped: bool = False, in_place: bool = False, codec: str = "", waits: bool = False, rates: tuple[Rate, ...] = (),
) -> Handle:  # fmt: skip
    """An allreduce.  `rates`: each tensor's learning rate, for methods of compression that owe."""
    for each in tensors:
        reducible(checked(each, "allreduce"), "allreduce")
    if not tensors:
        raise ArgumentError("hvd.grouped_allreduce: the list of tensors is empty")
    if codec and any(each.dtype != torch.float32 for each in tensors):
        codec = ""
    if codec and op not in (Sum, Average):
        raise ArgumentError(f"hvd.allreduce: compression {codec!r} goes with op Sum and Average only")
    outputs = tensors if in_place else [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]
    return submit(
        "allreduce", name, tensors, outputs, process_set, grouped, waits, rates, op=OPS[op], prescale=float(prescale),
        postscale=float(postscale), codec=codec)  # fmt: skip


def allreduce_async(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Average (or Sum, Min, Max, Product, Adasum) all ranks' tensors, into a new tensor.

    It is multiplied by `prescale_factor` before and by `postscale_factor` after; integers in float64, then truncated.
    """
    return reduced([tensor], name, op_of(average, op), prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    codec: str = "",
) -> Handle:  # fmt: skip
    """The in-place form of allreduce_async.  `codec`: of a compression."""
    op = op_of(average, op)
    return reduced([tensor], name, op, prescale_factor, postscale_factor, process_set, in_place=True, codec=codec)


def grouped_allreduce_async(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Several together: when all ranks have submitted all of them they are carried out as one.  Results are a list."""
    op = op_of(average, op)
    return reduced(list(tensors), name, op, prescale_factor, postscale_factor, process_set, True)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], average: bool | None = None, name: str | None = None, op: int | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    codec: str = "",
) -> Handle:  # fmt: skip
    """The in-place form of grouped_allreduce_async."""
    op = op_of(average, op)
    return reduced(list(tensors), name, op, prescale_factor, postscale_factor, process_set, True, True, codec)


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Sum or average of sparse COO tensors, coalesced.  Call what it returns to get the result, sparse."""
    if op not in (Sum, Average):
        raise ArgumentError("hvd.sparse_allreduce_async: op must be hvd.Sum or hvd.Average")
    if not tensor.is_sparse:
        raise ArgumentError("hvd.sparse_allreduce_async: a dense tensor goes through hvd.allreduce_async")
    handle = sparse_reduced(tensor, name, op, process_set)
    return lambda: synchronize(handle)[0]


def sparse_reduced(tensor: Tensor, name: str, op: int, process_set: ProcessSet) -> Handle:
    """A sum or average of sparse tensors.  The result is a list of one."""
    return submit("sparse_allreduce", name, [tensor.detach()], [None], process_set, grouped=True, op=OPS[op])


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set,
    waits: bool = False, grouped: bool = True,
) -> Handle:  # fmt: skip
    """Several allgathers together.  Results are a list."""
    for each in tensors:
        if not checked(each, "allgather").dim():
            raise ArgumentError("hvd.allgather: a tensor without dimensions has no rows; pass tensor.reshape(1)")
    if not tensors:
        raise ArgumentError("hvd.grouped_allgather: the list of tensors is empty")
    return submit("allgather", name, tensors, [None] * len(tensors), process_set, grouped, waits)


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set, waits: bool = False
) -> Handle:
    """All ranks' rows, in rank order.  Ranks may have different numbers of them."""
    return grouped_allgather_async([tensor], name, process_set, waits, False)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The tensor of rank `root_rank` of the job, as a new tensor."""
    return sent(tensor, torch.empty_like(checked(tensor, "broadcast")), root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The tensor of rank `root_rank` of the job, in place."""
    return sent(tensor, checked(tensor, "broadcast"), root_rank, name, process_set)


def sent(
    tensor: Tensor, output: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, waits: bool = False
) -> Handle:
    """A broadcast."""
    member(process_set)
    ranks = process_set.ranks or []
    if root_rank not in ranks:
        raise ArgumentError(f"hvd.broadcast: root_rank={root_rank} is not one of the ranks of {process_set}")
    return submit("broadcast", name, [tensor], [output], process_set, waits=waits, root=ranks.index(root_rank))


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set,
    waits: bool = False,
) -> Handle:  # fmt: skip
    """splits[r] rows for each rank r of the process set, in rank order; None: equal parts.

    The result is (the rows for this rank, how many came from each rank).
    """
    ranks = member(process_set).size
    rows = checked(tensor, "alltoall").shape[0] if tensor.dim() else 0
    if splits is None:
        if rows % ranks:
            raise ArgumentError(f"hvd.alltoall: {rows} rows are not a multiple of {ranks} ranks; pass splits=")
        found = [rows // ranks] * ranks
    else:
        if isinstance(splits, Tensor) and (splits.dtype.is_floating_point or splits.dtype.is_complex):
            raise ArgumentError(f"hvd.alltoall: splits must be integers, not {splits.dtype}")
        found = [int(n) for n in splits]
    if len(found) != ranks or min(found) < 0 or sum(found) > rows:
        raise ArgumentError(f"hvd.alltoall: splits={found} must be {ranks} numbers of rows, of {rows} together")
    x = tensor[: sum(found)] if sum(found) < rows else tensor
    made = submit("alltoall", name, [x], [None], process_set, waits=waits, splits=tuple(found))
    made.turn = _splits_like(splits)
    return made


def _splits_like(splits: Any) -> Callable[[Any], Any]:
    """Makes of a result's numbers of rows a tensor such as the caller's."""
    like = splits if isinstance(splits, Tensor) else torch.empty(0, dtype=torch.int32)
    return lambda result: (result[0], torch.tensor(result[1], dtype=like.dtype, device=like.device))


def grouped_reducescatter_async(
    tensors: Sequence[Tensor], name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, waits: bool = False, grouped: bool = True,
) -> Handle:  # fmt: skip
    """Several together.  Results are a list."""
    for each in tensors:
        if not reducible(checked(each, "reducescatter"), "reducescatter").dim():
            raise ArgumentError("hvd.reducescatter: a tensor without dimensions has no rows")
    if not tensors:
        raise ArgumentError("hvd.grouped_reducescatter: the list of tensors is empty")
    if op not in (Average, Sum):
        raise HorovodInternalError("hvd.reducescatter: op must be hvd.Average or hvd.Sum")
    return submit(
        "reducescatter", name, tensors, [None] * len(tensors), process_set, grouped, waits, op=OPS[op],
        prescale=float(prescale_factor), postscale=float(postscale_factor))  # fmt: skip


def reducescatter_async(
    tensor: Tensor, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, waits: bool = False,
) -> Handle:  # fmt: skip
    """Average or Sum all ranks' tensors; each rank gets its share of the rows, the first ones one more."""
    return grouped_reducescatter_async(
        [tensor], name, op, process_set, prescale_factor, postscale_factor, waits, False)  # fmt: skip


def poll(handle: Handle) -> bool:
    """Is it over?"""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Wait for it; its result."""
    return handle.wait()


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined it takes part in their allreduces with zeros.

    Returns the rank that joined last.  Only allreduces are possible meanwhile.
    """
    return int(member(global_process_set).join().wait())


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks of the process set have called it."""
    submit("barrier", None, [], [], process_set, waits=True).wait()
