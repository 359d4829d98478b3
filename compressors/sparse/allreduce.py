"""A sum of sparse vectors, made of a communicator's calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hocket.arguments import choices, unmasked, whole
from hocket.codecs import HALF_NAMES
from hocket.compression.memory import hosted
from hocket.compression.sparse.pairs import MOST, Array, Sparse, element, itemsize, packed, rounded, unpacked
from hocket.errors import ArgumentError
from hocket.extending import at_once

if TYPE_CHECKING:
    from hocket import Communicator

WAYS = ("allgather", "split", "dense")
SPLIT_FROM = 5
"""Ranks.  With fewer, what regions save is less than their second round costs, if few indices are common."""


class Sum(NamedTuple):
    """One call: what its ways need to know."""

    comm: Communicator
    n: int
    values: np.dtype[Any]
    """The dtype of one value: of a number, or of a row of numbers."""
    codec: str | None
    timeout: float | None


@at_once
def allreduce_sparse(
    comm: Communicator, indices: Any, values: Any, n: int | tuple[int, ...], algorithm: str | None = None,
    timeout: float | None = None, codec: str | None = None, out: Any = None,
) -> Sparse:  # fmt: skip
    """Add up vectors of n elements of which each rank has few, values[i] at indices[i]; the sum as another such.

    `indices`: integers 0 to n - 1; what is given twice is added.  `values`: as many numbers, of one dtype on all
    ranks; how many may differ.  The result's indices ascend, and all ranks get the same bits.  NumPy arrays.
    Elements may be rows: then values[i] is one, of one shape on all ranks.  `n` may be a shape of several axes: then
    there is a row of indices for each axis, as in COO tensors, and the result's are alike.

    A pair is a value and 2 bytes, its distance from the one before: 6 bytes for float32, 12 if that is above
    65,535, 18 from 2^48 on.  `codec`, "fp16" or "bf16": float32 values are sent so to who adds them, 4 bytes for
    each; sums are float32.

    `algorithm`: "allgather", where every rank gets every rank's pairs: k(p-1) if each brings k.  "split": ranks add
    up one region each, which hold about as many pairs, and give its sum to all: 2k(p-1)/p pairs if all have the
    same indices, k(p-1)(1 + 1/p) if none.  "dense": an allreduce.  None: "dense" where the pairs are longer than
    two vectors, else by p.  `out`: an array of n elements that becomes the sum, too, which for "allgather" is
    faster than sorting.  Waits; all in NumPy and one thread.  Raises ArgumentError.

    Source: Renggli et al., "SparCML: High-Performance Sparse Communication for Machine Learning", SC 2019; regions
    by quantiles: Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022.

    >>> import hocket, numpy as np
    >>> from hocket.compression import allreduce_sparse
    >>> def three(comm):
    ...     indices, values = allreduce_sparse(comm, [comm.rank, 7], np.ones(2), n=10)
    ...     return indices.tolist(), values.tolist()
    >>> hocket.local_world(3).run(three)[0]
    ([0, 1, 2, 7], [1.0, 1.0, 1.0, 3.0])
    """
    for each, what in ((indices, "indices"), (values, "values"), (out, "out")):
        hosted(each, f"{what} of allreduce_sparse")
    shape = tuple(whole(each, "n") for each in (n if isinstance(n, tuple) else (n,)))
    mine = _merged([_checked(indices, values, shape, isinstance(n, tuple))])
    value = element(mine[1])
    if algorithm is not None and algorithm not in WAYS:
        raise ArgumentError(
            f"algorithm={algorithm!r} is not an algorithm of allreduce_sparse; {choices(algorithm, WAYS)}"
        )
    if codec is not None and (codec not in HALF_NAMES or value.base != np.float32):
        raise ArgumentError(f"codec={codec!r}: allreduce_sparse takes {' or '.join(HALF_NAMES)}, with float32 values")
    way = WAYS.index(algorithm) if algorithm else -1
    half = HALF_NAMES.index(codec) if codec else -1
    whole_shape = (*shape, *value.shape)
    if out is not None and not (out.shape == whole_shape and out.dtype == value.base and out.flags.writeable
                                and (out.ndim == 1 or out.flags.c_contiguous)):  # fmt: skip
        raise ArgumentError(
            f"out must be a writable, contiguous array, {value.base}{list(whole_shape)}, "
            f"got {out.dtype}{list(out.shape)}"
        )
    rows = packed(mine, 0, codec)
    agreed = [*shape, math.prod(value.shape), value.base.num, way, half]
    every = comm.allgather(np.array([[len(rows), *agreed]]), timeout=timeout)
    if (every[:, 1:] != agreed).any():
        raise ArgumentError(
            "allreduce_sparse: ranks were given different (n, numbers of a value, dtype's number, algorithm, codec): "
            + "; ".join(f"rank {r}: {row[1:].tolist()}" for r, row in zip(comm.members, every, strict=True))
        )
    call, counts = Sum(comm, math.prod(shape), value, codec, timeout), every[:, 0].tolist()
    places, sums = _summed(call, mine, rows, counts, algorithm or _chosen(call, sum(counts)), out)
    return (_unraveled(places, shape) if isinstance(n, tuple) else places), sums


def _summed(call: Sum, mine: Sparse, rows: Array, counts: Sequence[int], way: str, out: Any) -> Sparse:
    flat = None if out is None else out.reshape(call.n, *call.values.shape)
    if way == "allgather":
        parts = _gathered(call, rows, counts)
        return _merged(parts) if flat is None else _into(flat, parts)
    summed = {"split": _by_quantiles, "dense": _by_vector}[way](call, mine)
    return summed if flat is None else _into(flat, [summed])


def _into(out: Array, parts: Sequence[Sparse]) -> Sparse:
    """The sum of the parts in `out`, a vector in which values are found without being sorted."""
    out[...] = 0
    for indices, values in parts:  # in each, every index is there once
        out[indices] += values
    present = np.zeros(len(out), bool)
    for indices, _ in parts:
        present[indices] = True
    places = np.flatnonzero(present)
    return places, out[places]


def _chosen(call: Sum, total: int) -> str:
    """The way with the fewest bytes, as far as one can know before the sum: twice a vector, or every rank's pairs."""
    if total * itemsize(call.values, call.codec) >= 2 * call.n * call.values.itemsize:
        return "dense"
    return "allgather" if call.comm.size < SPLIT_FROM else "split"


def _checked(indices: Any, values: Any, shape: tuple[int, ...], by_axes: bool) -> Sparse:
    """The pairs of a vector, whatever the axes."""
    unmasked(indices, "indices")
    unmasked(values, "values")
    where, what = np.asarray(indices), np.asarray(values)
    if not shape or min(shape) < 0 or math.prod(shape) >= MOST:
        raise ArgumentError(f"n={shape if by_axes else shape[0]} must be the length of the vector, or a tensor's shape")
    rows = where if by_axes else where[None]
    if (
        rows.ndim != 2 or rows.shape != (len(shape), len(what) if what.ndim else -1)
        or where.dtype.kind not in "iu" or what.dtype.kind not in "iuf" or 0 in what.shape[1:]
    ):  # fmt: skip
        wanted = f"[{len(shape)}, k]" if by_axes else "[k]"
        raise ArgumentError(
            f"indices must be integers of shape {wanted}, and values k numbers or rows of "
            f"numbers; got {where.dtype}{list(where.shape)} and {what.dtype}{list(what.shape)}"
        )
    flat = np.zeros(len(what), np.int64)
    for each, length in zip(rows, shape, strict=True):
        if len(each) and not (each.min() >= 0 and each.max() < length):
            raise ArgumentError(f"indices must be 0 to {length - 1}, got {each.min()} to {each.max()}")
        flat = flat * length + each.astype(np.int64, copy=False)
    return flat, what


def _unraveled(places: Array, shape: tuple[int, ...]) -> Array:
    """A row of indices for each axis."""
    rows = []
    for length in reversed(shape[1:]):
        places, at = np.divmod(places, max(length, 1))
        rows.append(at)
    return np.stack([places, *reversed(rows)])


def _merged(parts: Sequence[Sparse]) -> Sparse:
    """The sum of the parts.  Values of one index are added in the order of the parts."""
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


def quantiles(comm: Communicator, indices: Array, n: int, timeout: float | None = None) -> Array:
    """Where the regions of ranks 1, 2, ... of n elements begin: the averages of the ranks' own quantiles, so that each
    region gets about as many pairs."""
    p = comm.size
    own = np.quantile(indices, np.arange(1, p) / p) if len(indices) else np.arange(1, p) * (n / p)
    mean: Array = comm.allreduce(own, "avg", timeout=timeout)
    return np.ceil(mean).astype(np.int64)


def by_regions(call: Sum, mine: Sparse, ends: Array, kept: Callable[[Sparse], Sparse] | None = None) -> Sparse:
    """Each rank adds up one region of the vector, and gives its sum to all; `kept`: as much of it as this returns."""
    comm, n, values, codec, timeout = call
    firsts, cuts = [0, *ends.tolist()], np.searchsorted(mine[0], ends)
    each = zip(np.split(mine[0], cuts), np.split(mine[1], cuts), firsts, strict=True)
    send = [packed((indices, some), first, codec) for indices, some, first in each]
    lengths = np.array([len(rows) for rows in send])
    come = comm.alltoall(lengths, timeout=timeout)
    rows = comm.alltoallv(np.concatenate(send), lengths.tolist(), come.tolist(), timeout=timeout)
    first = firsts[comm.rank]
    region = _merged([unpacked(part, values, first, codec) for part in np.split(rows, np.cumsum(come)[:-1])])
    region = region if kept is None else kept(region)
    rows = packed(region, first, None)  # values are rounded once, on their way to who adds them
    counts = comm.allgather(np.array([len(rows)]), timeout=timeout).tolist()
    indices, sums = zip(*_gathered(call._replace(codec=None), rows, counts, firsts), strict=True)
    return np.concatenate(indices), np.concatenate(sums)


def _by_quantiles(call: Sum, mine: Sparse) -> Sparse:
    return by_regions(call, mine, quantiles(call.comm, mine[0], call.n, call.timeout))


def _by_vector(call: Sum, mine: Sparse) -> Sparse:
    """An allreduce of the whole vector, and of which elements it holds."""
    vector, present = np.zeros(call.n, call.values), np.zeros(call.n, np.uint8)
    vector[mine[0]], present[mine[0]] = mine[1] if call.codec is None else rounded(mine[1], call.codec), 1
    call.comm.allreduce(vector, timeout=call.timeout)
    call.comm.allreduce(present, "max", timeout=call.timeout)
    indices = np.flatnonzero(present)
    return indices, vector[indices]
