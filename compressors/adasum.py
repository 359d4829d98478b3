"""Adaptive summation: gradients that agree are averaged, gradients that do not meet are added."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array
from hocket.compression.method import Averaged, MethodState, Together, chunks

SMALL, LARGE = 1e-20, 1e20
"""Between them float32 squares and products neither vanish nor overflow in sums."""


class AdaSum(Together):
    """The adaptive sum of two vectors, (1 - ab/2aa) a + (1 - ab/2bb) b: their mean if they are parallel, their sum if
    they are at right angles.  Of more ranks, by pairs of neighbours, then pairs of pairs; an odd one out waits for the
    next round.

    Each vector is combined by its own products, so a key is a layer; products are sums in float64 where float32 does
    not hold them.  No bits are saved: 2n(p-1)/p bytes per rank, as those of an allreduce, and log2(p) sums of three
    numbers for each pair and vector.  Nothing is owed.  The steps of the optimizer are meant for one rank's batch:
    nothing is divided by the ranks.

    Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.

    >>> import hocket, numpy as np
    >>> from hocket.compression import Compressor
    >>> def both(comm):
    ...     x = np.array([1, 0] if comm.rank else [0, 2], np.float32)
    ...     y = np.array([1, 2], np.float32)
    ...     c = Compressor(comm, "adasum")
    ...     return c.allreduce(x, "w").tolist(), c.allreduce(y, "v").tolist()
    >>> hocket.local_world(2).run(both)[0]
    ([1.0, 2.0], [1.0, 2.0])
    """

    name = "adasum"

    host = "its products are added in float64 by NumPy"

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """All at once: each rank combines its part of the vectors of all."""
        n, p = vectors.flat.size, comm.size
        cuts = [n * r // p for r in range(p + 1)]
        counts = np.diff(cuts).tolist()
        mine = counts[comm.rank]
        every = comm.alltoallv(vectors.flat, counts, [mine] * p).reshape(p, mine)
        lengths = _within([part.size for part in vectors.parts], cuts[comm.rank], cuts[comm.rank + 1])
        comm.allgatherv(_combined(comm, list(every), lengths), counts, results.flat)
        vectors.flat[...] = 0
        return [Averaged({}, part.nbytes) for part in vectors.parts]


def _within(sizes: Sequence[int], begin: int, end: int) -> list[int]:
    """The part of each of several vectors, one after the other, that lies between two places."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return [max(0, min(after, end) - max(first, begin)) for first, after in itertools.pairwise(ends)]


def _combined(comm: Any, rows: list[Array], lengths: Sequence[int]) -> Array:
    """This rank's part of the result.  `lengths`: of the part, how much belongs to each vector."""
    ends = np.cumsum(lengths)[:-1]
    while len(rows) > 1:
        pairs = [
            list(zip(np.split(one, ends), np.split(other, ends), strict=True))
            for one, other in zip(rows[::2], rows[1::2], strict=False)
        ]
        dots = comm.allreduce(np.array([[_products(a, b) for a, b in pair] for pair in pairs]))
        sums = [
            np.concatenate([_sum(*each) for each in zip(pair, of_pair, strict=True)])
            for pair, of_pair in zip(pairs, dots, strict=True)
        ]
        rows = sums + rows[2 * len(pairs) :]
    return rows[0]


def _products(a: Array, b: Array) -> Array:
    """ab, aa and bb; in float64 where float32 does not hold the squares."""
    with np.errstate(over="ignore"):
        products = np.array([np.dot(a, b), np.dot(a, a), np.dot(b, b)], float)
    if products[1:].min() > SMALL and products[1:].max() < LARGE:
        return products
    products[...] = 0
    for one in chunks(a):
        x, y = a[one].astype(float), b[one].astype(float)
        products += np.dot(x, y), np.dot(x, x), np.dot(y, y)
    return products


def _sum(pair: tuple[Array, Array], products: Array) -> Array:
    """The sum of two vectors; in float64 where one is so much the longer that a factor is large."""
    (a, b), (ab, aa, bb) = pair, products
    left, right = 1 - ab / (2 * aa or 1), 1 - ab / (2 * bb or 1)
    kind = np.float64 if max(abs(left), abs(right)) > LARGE else np.float32
    return np.asarray(a * kind(left) + b * kind(right), np.float32)
