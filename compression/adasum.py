"""Adaptive summation: gradients that agree are averaged, gradients that do not meet are added."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.method import Array, Averaged, Batch, Kept, Together


class AdaSum(Together):
    """Of two vectors (1 - ab/2aa) a + (1 - ab/2bb) b: their mean if they are parallel, their sum if they are at right
    angles.  Of more ranks, by pairs of neighbours, then pairs of pairs; an odd one out waits for the next round.

    Each vector is combined by its own products, so a key is a layer.  No bits are saved: 2n(p-1)/p bytes per rank, as
    those of an allreduce, and log2(p) sums of three numbers for each pair and vector.  Nothing is owed.  The steps of
    the optimizer are meant for one rank's batch: nothing is divided by the ranks.

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

    def average_all(
        self, comm: Any, vectors: Batch, results: Batch, kepts: Sequence[Kept], seeds: Sequence[int]
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
    """Of vectors of these sizes, one after the other, how much of each lies between two places."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return [max(0, min(after, end) - max(first, begin)) for first, after in itertools.pairwise(ends)]


def _combined(comm: Any, rows: list[Array], lengths: Sequence[int]) -> Array:
    """This rank's part of the result.  `lengths`: of the part, how much belongs to each vector."""
    ends = np.cumsum(lengths)[:-1]
    while len(rows) > 1:
        pairs = list(zip(rows[::2], rows[1::2], strict=False))
        dots = np.array([
            [[float(np.dot(a, b)), float(np.dot(a, a)), float(np.dot(b, b))]
             for a, b in zip(np.split(one, ends), np.split(other, ends), strict=True)]
            for one, other in pairs
        ])  # fmt: skip
        ab, aa, bb = np.moveaxis(comm.allreduce(dots), -1, 0)
        left, right = (1 - ab / np.where(square == 0, 1, 2 * square) for square in (aa, bb))
        factors = (np.repeat(each, lengths, axis=1).astype(np.float32) for each in (left, right))
        made = [a * f + b * g for (a, b), f, g in zip(pairs, *factors, strict=True)]
        rows = made + rows[2 * len(pairs) :]
    return rows[0]
