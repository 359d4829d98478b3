"""A sum of sparse vectors, made of the other calls: `Communicator.allreduce_sparse`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.arguments import choices, whole
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

Array = np.ndarray[Any, Any]
Sparse = tuple[Array, Array]
"""(indices, values): int64 or int32, ascending, each once."""
WAYS = ("allgather", "split", "dense")
SPLIT_FROM = 5
"""Ranks.  With fewer, what regions save is less than their second round costs, if few indices are common."""
MOST = 1 << 62


def allreduce_sparse(
    comm: Communicator, indices: Any, values: Any, n: int, algorithm: str | None, timeout: float | None
) -> Sparse:
    """What `Communicator.allreduce_sparse` returns."""
    mine = _merged([_checked(indices, values, n)])
    if algorithm is not None and algorithm not in WAYS:
        raise ArgumentError(f"algorithm={algorithm!r} is none of allreduce_sparse; {choices(algorithm, WAYS)}")
    way = WAYS.index(algorithm) if algorithm else -1
    told = comm.allgather(np.array([[len(mine[0]), n, mine[1].dtype.num, way]]), timeout=timeout)
    if (told[:, 1:] != told[0, 1:]).any():
        raise ArgumentError(
            "allreduce_sparse: the ranks differ in (n, dtype's number, algorithm): "
            + "; ".join(f"rank {r}: {row[1:].tolist()}" for r, row in enumerate(told))
        )
    counts = told[:, 0].tolist()
    way_of = {"allgather": _by_allgather, "split": _by_regions, "dense": _by_vector}
    return way_of[algorithm or _chosen(sum(counts), n, mine, comm.size)](comm, mine, counts, n, timeout)


def _chosen(total: int, n: int, mine: Sparse, size: int) -> str:
    """The way with the fewest bytes, as far as one can know before the sum: twice a vector, or every rank's pairs."""
    pair, element = _pairs(mine[1].dtype, n).itemsize, mine[1].dtype.itemsize
    if total * pair >= 2 * n * element:
        return "dense"
    return "allgather" if size < SPLIT_FROM else "split"


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


def _pairs(dtype: np.dtype[Any], n: int) -> np.dtype[Any]:
    return np.dtype([("index", np.int32 if n < 1 << 31 else np.int64), ("value", dtype)])


def _packed(some: Sparse, n: int) -> Array:
    """A row of bytes for each pair."""
    pairs = np.empty(len(some[0]), _pairs(some[1].dtype, n))
    pairs["index"], pairs["value"] = some
    return pairs.view(np.uint8).reshape(len(pairs), pairs.itemsize)


def _unpacked(rows: Array, dtype: np.dtype[Any], n: int) -> Sparse:
    pairs = np.ascontiguousarray(rows).reshape(-1).view(_pairs(dtype, n))
    return pairs["index"].astype(np.int64), pairs["value"]


def _gathered(comm: Communicator, mine: Sparse, counts: Sequence[int], n: int, timeout: float | None) -> list[Sparse]:
    rows = comm.allgatherv(_packed(mine, n), counts, timeout=timeout)
    return [_unpacked(part, mine[1].dtype, n) for part in np.split(rows, np.cumsum(counts)[:-1])]


def _by_allgather(
    comm: Communicator, mine: Sparse, counts: Sequence[int], n: int, timeout: float | None
) -> Sparse:
    """Every rank's pairs to every rank."""
    return _merged(_gathered(comm, mine, counts, n, timeout))


def _by_regions(comm: Communicator, mine: Sparse, counts: Sequence[int], n: int, timeout: float | None) -> Sparse:
    """Each rank adds up one region of the vector, and gives its sum to all.

    The regions' ends are the averages of the ranks' own quantiles, so that each gets about as many pairs.
    """
    p = comm.size
    own = np.quantile(mine[0], np.arange(1, p) / p) if len(mine[0]) else np.arange(1, p) * (n / p)
    ends = comm.allreduce(own, "avg", timeout=timeout)
    cuts = np.searchsorted(mine[0], ends)
    send = np.diff(cuts, prepend=0, append=len(mine[0]))
    come = comm.alltoall(send, timeout=timeout)
    rows = comm.alltoallv(_packed(mine, n), send.tolist(), come.tolist(), timeout=timeout)
    parts = [_unpacked(part, mine[1].dtype, n) for part in np.split(rows, np.cumsum(come)[:-1])]
    region = _merged(parts)
    lengths = comm.allgather(np.array([len(region[0])]), timeout=timeout).tolist()
    indices, values = zip(*_gathered(comm, region, lengths, n, timeout), strict=True)
    return np.concatenate(indices), np.concatenate(values)


def _by_vector(comm: Communicator, mine: Sparse, counts: Sequence[int], n: int, timeout: float | None) -> Sparse:
    """An allreduce of the whole vector, and of which elements it holds."""
    vector, there = np.zeros(n, mine[1].dtype), np.zeros(n, np.uint8)
    vector[mine[0]], there[mine[0]] = mine[1], 1
    comm.allreduce(vector, timeout=timeout, algorithm=None)
    comm.allreduce(there, "max", timeout=timeout)
    indices = np.flatnonzero(there)
    return indices, vector[indices]
