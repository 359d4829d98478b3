"""The arrays that each collective takes and gives: one function checks them, and finds where the result goes.

This is the only place that knows shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy

from hocket.arguments import rank_in, wholes
from hocket.collectives.arrays.buffers import Buffer, describe, empty_like, overlap
from hocket.collectives.calls.ask import Ask
from hocket.collectives.calls.call import Call, shortened
from hocket.collectives.calls.exact import added_rows
from hocket.errors import ArgumentError


def writable(b: Buffer, what: str) -> Buffer:
    if not b.writable:
        if getattr(b.array, "requires_grad", False):
            raise ArgumentError(
                f"{what} requires grad, and autograd cannot see the call; pass {what.split()[0]}.detach(), "
                "or call under torch.no_grad()"
            )
        if isinstance(b.array, numpy.generic):
            name = type(b.array).__name__
            raise ArgumentError(f"{what} is a NumPy scalar, whose value cannot change; pass numpy.array([x], '{name}')")
        raise ArgumentError(f"{what} is read-only; pass out= or a writable copy")
    return b


def _output(x: Buffer, out: Any, shape: tuple[int, ...], what: str) -> tuple[Buffer, Any]:
    """The buffer for the result: `out`, checked against `shape` (its element count), or a new array."""
    if out is None:
        array = empty_like(x, shape)
        b = describe(array, "out")
        b.fresh = True
        return b, array
    b = writable(describe(out, "out"), "out")
    count = 1
    for n in shape:
        count *= n
    if b.dtype != x.dtype:
        raise ArgumentError(f"out has dtype {b.dtype.name}, x has {x.dtype.name}; they must be the same")
    if b.count != count:
        raise ArgumentError(f"out has shape {b.shape} ({b.count} elements); {what} gives {shape} ({count} elements)")
    return b, out


def _apart(x: Buffer, out: Buffer, what: str) -> None:
    if overlap(x, out):
        raise ArgumentError(f"out overlaps x; {what} needs separate memory")


def _row(x: Buffer) -> int:
    """Elements of one row of axis 0."""
    n = 1
    for d in x.shape[1:]:
        n *= d
    return n


def _counts(counts: Sequence[int], size: int, what: str) -> tuple[int, ...]:
    given = tuple(wholes(counts, what))
    if len(given) != size or any(n < 0 for n in given):
        raise ArgumentError(f"{what}={shortened(given)} must be {size} row counts, one per rank, each at least 0")
    return given


def _needs_axis(x: Buffer, collective: str) -> None:
    if not x.shape:
        raise ArgumentError(f"{collective} works on axis 0, and x is a scalar (shape ()); pass x.reshape(1)")


# --- vectors


def vector(collective: str, x: Any, out: Any) -> Call:
    """allreduce, scan, exscan: same shape in and out; in place without `out`."""
    src = describe(x)
    if out is None or out is x:
        writable(src, "x (the result goes in place without out=)")
        return Call(collective, src, src, src.count, in_place=True, result=x)
    dst, result = _output(src, out, src.shape, collective)
    same = dst.address == src.address and dst.nbytes == src.nbytes
    if not same:
        _apart(src, dst, f"{collective} (unless out is x)")
    return Call(collective, src, dst, src.count, in_place=same, result=result)


def broadcast(x: Any, root: int, rank: int) -> Call:
    """The root's x to all, in place."""
    src = describe(x)
    if rank != root:
        writable(src, "x")
    return Call("broadcast", src, src, src.count, root=root, in_place=True, result=x)


def reduce(x: Any, root: int, out: Any, rank: int) -> Call:
    """The result at the root (a new array, or out); other ranks' x untouched, and they get None."""
    src = describe(x)
    if rank != root:
        return Call("reduce", src, None, src.count, root=root)
    if out is x:
        return Call("reduce", writable(src, "x"), src, src.count, root=root, in_place=True, result=x)
    dst, result = _output(src, out, src.shape, "reduce")
    _apart(src, dst, "reduce (unless out is x)")
    return Call("reduce", src, dst, src.count, root=root, result=result)


# --- blocks


def reduce_scatter(x: Any, out: Any, counts: Sequence[int] | None, rank: int, size: int) -> Call:
    """x has sum(counts) rows; each rank gets its own rows of the sum."""
    src = describe(x)
    _needs_axis(src, "reduce_scatter")
    if counts is None:
        if src.rows % size:
            raise ArgumentError(
                f"x has {src.rows} rows, not a multiple of {size} ranks; use reduce_scatterv(x, counts)"
            )
        rows = (src.rows // size,) * size
    else:
        rows = _counts(counts, size, "counts")
        if sum(rows) != src.rows:
            raise ArgumentError(f"counts={list(rows)} add up to {sum(rows)} rows; x has {src.rows}")
    row = _row(src)
    dst, result = _output(src, out, (rows[rank], *src.shape[1:]), "reduce_scatter")
    own_block = src.address + sum(rows[:rank]) * row * src.dtype.itemsize
    if not (dst.address == own_block and src.writable):
        _apart(src, dst, "reduce_scatter (unless out is this rank's own block of x)")
    return Call("reduce_scatter", src, dst, src.count, counts=tuple(n * row for n in rows), result=result)


def allgather(x: Any, out: Any, counts: Sequence[int] | None, rank: int, size: int) -> Call:
    """All ranks' rows, one after the other."""
    src, rows = _contribution(x, counts, rank, size, "allgather")
    row = _row(src)
    dst, result = _output(src, out, (sum(rows), *src.shape[1:]), "allgather")
    in_place = src.nbytes > 0 and dst.address + sum(rows[:rank]) * row * src.dtype.itemsize == src.address
    if not in_place:
        _apart(src, dst, "allgather (unless x is this rank's own block of out)")
    elements = tuple(n * row for n in rows)
    return Call("allgather", src, dst, sum(elements), counts=elements, in_place=in_place, result=result)


def gather(x: Any, root: int, out: Any, counts: Sequence[int] | None, rank: int, size: int) -> Call:
    """All ranks' rows at the root; None elsewhere."""
    src, rows = _contribution(x, counts, rank, size, "gather")
    row = _row(src)
    elements = tuple(n * row for n in rows)
    if rank != root:
        return Call("gather", src, None, sum(elements), root=root, counts=elements)
    dst, result = _output(src, out, (sum(rows), *src.shape[1:]), "gather")
    _apart(src, dst, "gather")
    return Call("gather", src, dst, sum(elements), root=root, counts=elements, result=result)


def _contribution(
    x: Any, counts: Sequence[int] | None, rank: int, size: int, what: str
) -> tuple[Buffer, tuple[int, ...]]:
    src = describe(x)
    _needs_axis(src, what)
    if counts is None:
        return src, (src.rows,) * size
    rows = _counts(counts, size, "counts")
    if rows[rank] != src.rows:
        raise ArgumentError(f"counts[{rank}] is {rows[rank]}, but x has {src.rows} rows on this rank")
    return src, rows


def scatter(x: Any, root: int, out: Any, counts: Sequence[int] | None, rank: int, size: int) -> Call:
    """The root's rows, dealt out.  Other ranks tell the shape by `out`, or by an x of the same shape as the root's."""
    if rank != root and out is not None and x is None:
        dst = writable(describe(out, "out"), "out")
        _needs_axis(dst, "scatter")
        rows = _counts(counts, size, "counts") if counts is not None else (dst.rows,) * size
        elements = tuple(n * _row(dst) for n in rows)
        if dst.count != elements[rank]:
            raise ArgumentError(f"out has {dst.count} elements; counts give {elements[rank]} to this rank")
        return Call("scatter", None, dst, sum(elements), root=root, counts=elements, result=out)
    if x is None:
        raise ArgumentError(
            "scatter: the root passes x; other ranks pass out= (their rows) or an x of the root's shape"
        )
    src = describe(x)
    _needs_axis(src, "scatter")
    if counts is None and src.rows % size:
        raise ArgumentError(
            f"x has {src.rows} rows, not a multiple of {size} ranks; use scatterv(x, counts)"
        )
    rows = _counts(counts, size, "counts") if counts is not None else (src.rows // size,) * size
    if sum(rows) != src.rows:
        raise ArgumentError(f"counts={list(rows)} add up to {sum(rows)} rows; x has {src.rows}")
    dst, result = _output(src, out, (rows[rank], *src.shape[1:]), "scatter")
    _apart(src, dst, "scatter")
    elements = tuple(n * _row(src) for n in rows)
    return Call("scatter", src, dst, sum(elements), root=root, counts=elements, result=result)


def alltoall(
    x: Any, out: Any, send: Sequence[int] | None, recv: Sequence[int] | None, rank: int, size: int
) -> Call:
    """Block d of x goes to rank d; the result is the blocks from all ranks, in rank order."""
    src = describe(x)
    _needs_axis(src, "alltoall")
    if send is None or recv is None:
        if src.rows % size:
            raise ArgumentError(
                f"x has {src.rows} rows, not a multiple of {size} ranks; "
                "use alltoallv(x, send_counts, recv_counts)"
            )
        to = of = (src.rows // size,) * size
    else:
        to, of = _counts(send, size, "send_counts"), _counts(recv, size, "recv_counts")
        if sum(to) != src.rows:
            raise ArgumentError(f"send_counts={list(to)} add up to {sum(to)} rows; x has {src.rows}")
        if to[rank] != of[rank]:
            raise ArgumentError(f"send_counts[{rank}]={to[rank]} and recv_counts[{rank}]={of[rank]} differ: both are "
                                "what this rank sends to itself")
    row = _row(src)
    dst, result = _output(src, out, (sum(of), *src.shape[1:]), "alltoall")
    _apart(src, dst, "alltoall")
    elements = tuple(n * row for n in (*to, *of))
    return Call("alltoall", src, dst, src.count, counts=elements, private=send is not None, result=result)


def added(ask: Ask, x: Any, out: Any, rank: int, size: int) -> Call:
    """The call that adds the rows of x, too: as of one row, with a result of its own."""
    src = describe(x)
    exact = added_rows(src)
    first = x[:1].reshape(src.shape[1:]) if src.rows else empty_like(src, src.shape[1:])
    if ask.collective not in ("allreduce", "reduce", "reduce_scatter"):
        raise ArgumentError(f"{ask.collective} takes no axis=; allreduce, reduce and reduce_scatter do")
    if out is None and ask.collective == "allreduce":
        out = empty_like(src, tuple(src.shape[1:]))
    call = resolve_call(ask._replace(axis=None), first, out, rank, size)
    if call.dst is not None:
        _apart(src, call.dst, "axis=0")
    return dataclasses.replace(call, src=src, exact=exact)


def resolve_call(ask: Ask, x: Any, out: Any, rank: int, size: int) -> Call:
    """The call that `ask` and the arrays make."""
    if ask.axis is not None:
        return added(ask, x, out, rank, size)
    collective, counts, root = ask.collective, ask.counts, rank_in(size, ask.root, "root")
    if collective in ("barrier", "close"):
        nothing = describe(x)
        return Call(collective, nothing, nothing, 0, in_place=True, result=x)
    if collective in ("allreduce", "scan", "exscan"):
        return vector(collective, x, out)
    if collective == "broadcast":
        return broadcast(x, root, rank)
    if collective == "reduce":
        return reduce(x, root, out, rank)
    if collective == "alltoall":
        to, of = counts or (None, None)
        return alltoall(x, out, to, of, rank, size)
    if collective in ("gather", "scatter"):
        return (gather if collective == "gather" else scatter)(x, root, out, counts, rank, size)
    return (allgather if collective == "allgather" else reduce_scatter)(x, out, counts, rank, size)
