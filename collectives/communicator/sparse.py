"""A sum of sparse vectors, made of the other calls: `Communicator.allreduce_sparse`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hocket.arguments import choices, whole
from hocket.collectives.communicator.sparse_rows import (
    MOST,
    Array,
    Sparse,
    itemsize,
    packed,
    rounded,
    unpacked,
)
from hocket.errors import ArgumentError
from hocket.kernels.codecs import HALF_NAMES

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

WAYS = ("allgather", "split", "dense")
SPLIT_FROM = 5
"""Ranks.  With fewer, what regions save is less than their second round costs, if few indices are common."""


class Sum(NamedTuple):
    """One call: what its ways need to know."""

    comm: Communicator
    n: int
    values: np.dtype[Any]
    codec: str | None
    timeout: float | None


def allreduce_sparse(
    comm: Communicator, indices: Any, values: Any, n: int, algorithm: str | None, codec: str | None,
    timeout: float | None, out: Any = None,
) -> Sparse:  # fmt: skip
    """What `Communicator.allreduce_sparse` returns."""
    mine = _merged([_checked(indices, values, n)])
    if algorithm is not None and algorithm not in WAYS:
        raise ArgumentError(f"algorithm={algorithm!r} is none of allreduce_sparse; {choices(algorithm, WAYS)}")
    if codec is not None and (codec not in HALF_NAMES or mine[1].dtype != np.float32):
        raise ArgumentError(f"codec={codec!r}: allreduce_sparse has {' and '.join(HALF_NAMES)}, of float32 values")
    way = WAYS.index(algorithm) if algorithm else -1
    half = HALF_NAMES.index(codec) if codec else -1
    if out is not None and not (out.shape == (n,) and out.dtype == mine[1].dtype and out.flags.writeable):
        raise ArgumentError(f"out must be a writable vector of {n} {mine[1].dtype}, got {out.dtype}{list(out.shape)}")
    rows = packed(mine, 0, codec)
    told = comm.allgather(np.array([[len(rows), n, mine[1].dtype.num, way, half]]), timeout=timeout)
    if (told[:, 1:] != told[0, 1:]).any():
        raise ArgumentError(
            "allreduce_sparse: the ranks differ in (n, dtype's number, algorithm, codec): "
            + "; ".join(f"rank {r}: {row[1:].tolist()}" for r, row in enumerate(told))
        )
    call, counts = Sum(comm, n, mine[1].dtype, codec, timeout), told[:, 0].tolist()
    chosen = algorithm or _chosen(call, sum(counts))
    if chosen == "allgather":
        parts = _gathered(call, rows, counts)
        return _merged(parts) if out is None else _into(out, parts)
    found = {"split": _by_regions, "dense": _by_vector}[chosen](call, mine)
    return found if out is None else _into(out, [found])


def _into(out: Array, parts: Sequence[Sparse]) -> Sparse:
    """Their sum as a vector, in which values are found without being sorted."""
    out[...] = 0
    for indices, values in parts:  # in each, every index is there once
        out[indices] += values
    there = np.zeros(len(out), bool)
    for indices, _ in parts:
        there[indices] = True
    found = np.flatnonzero(there)
    return found, out[found]


def _chosen(call: Sum, total: int) -> str:
    """The way with the fewest bytes, as far as one can know before the sum: twice a vector, or every rank's pairs."""
    if total * itemsize(call.values, call.codec) >= 2 * call.n * call.values.itemsize:
        return "dense"
    return "allgather" if call.comm.size < SPLIT_FROM else "split"


def _checked(indices: Any, values: Any, n: int) -> Sparse:
    where, what = np.asarray(indices), np.asarray(values)
    if not 0 <= whole(n, "n") < MOST:
        raise ArgumentError(f"n={n} must be the length of the vector")
    if where.ndim != 1 or where.shape != what.shape or where.dtype.kind not in "iu" or what.dtype.kind not in "iuf":
        raise ArgumentError(
            "indices and values must be vectors of one length, of integers and of numbers; "
            f"got {where.dtype}{list(where.shape)} and {what.dtype}{list(what.shape)}"
        )
    if len(where) and not (where.min() >= 0 and where.max() < n):
        raise ArgumentError(f"indices must be 0 to {n - 1}, got {where.min()} to {where.max()}")
    return where.astype(np.int64, copy=False), what


def _merged(parts: Sequence[Sparse]) -> Sparse:
    """Their sum.  Values of one index are added in the order of the parts."""
    indices, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    first = np.flatnonzero(np.diff(indices, prepend=-1))
    if len(first) == len(indices):
        return indices, values
    return indices[first], np.add.reduceat(values, first, dtype=values.dtype)


def _gathered(call: Sum, rows: Array, counts: Sequence[int], firsts: Sequence[int] | None = None) -> list[Sparse]:
    """Every rank's pairs to every rank.  `firsts`: where each rank begins to count; from 0."""
    every = np.split(call.comm.allgatherv(rows, counts, timeout=call.timeout), np.cumsum(counts)[:-1])
    each = zip(every, firsts or [0] * len(counts), strict=True)
    return [unpacked(part, call.values, first, call.codec) for part, first in each]


def _by_regions(call: Sum, mine: Sparse) -> Sparse:
    """Each rank adds up one region of the vector, and gives its sum to all.

    The regions' ends are the averages of the ranks' own quantiles, so that each gets about as many pairs.
    """
    comm, n, values, codec, timeout = call
    p = comm.size
    own = np.quantile(mine[0], np.arange(1, p) / p) if len(mine[0]) else np.arange(1, p) * (n / p)
    ends = np.ceil(comm.allreduce(own, "avg", timeout=timeout)).astype(np.int64)
    firsts, cuts = [0, *ends.tolist()], np.searchsorted(mine[0], ends)
    each = zip(np.split(mine[0], cuts), np.split(mine[1], cuts), firsts, strict=True)
    send = [packed((indices, some), first, codec) for indices, some, first in each]
    lengths = np.array([len(rows) for rows in send])
    come = comm.alltoall(lengths, timeout=timeout)
    rows = comm.alltoallv(np.concatenate(send), lengths.tolist(), come.tolist(), timeout=timeout)
    first = firsts[comm.rank]
    region = _merged([unpacked(part, values, first, codec) for part in np.split(rows, np.cumsum(come)[:-1])])
    rows = packed(region, first, None)  # values are rounded once, on their way to who adds them
    counts = comm.allgather(np.array([len(rows)]), timeout=timeout).tolist()
    indices, sums = zip(*_gathered(call._replace(codec=None), rows, counts, firsts), strict=True)
    return np.concatenate(indices), np.concatenate(sums)


def _by_vector(call: Sum, mine: Sparse) -> Sparse:
    """An allreduce of the whole vector, and of which elements it holds."""
    vector, there = np.zeros(call.n, call.values), np.zeros(call.n, np.uint8)
    vector[mine[0]], there[mine[0]] = mine[1] if call.codec is None else rounded(mine[1], call.codec), 1
    call.comm.allreduce(vector, timeout=call.timeout)
    call.comm.allreduce(there, "max", timeout=call.timeout)
    indices = np.flatnonzero(there)
    return indices, vector[indices]
