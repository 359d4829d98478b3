"""Sums of which only the largest elements go back to all ranks: Ok-Topk's, and DoubleSqueeze's with top-k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.codecs import not_below
from hocket.compression.bucket import Bucket
from hocket.compression.dense import DoubleSqueeze
from hocket.compression.memory import Array, finite
from hocket.compression.method import Averaged, MethodState, Together, checked_half, joined, single
from hocket.compression.sparse.allreduce import Sum, by_regions, quantiles
from hocket.compression.sparse.methods import checked, count, largest
from hocket.compression.sparse.pairs import Sparse, itemsize, rounded

EVERY, REGIONS = 32, 64
"""Calls in which thresholds, and regions, stay as they are: the source's."""
OFF = 4
"""A threshold that lets so many times too much through, or too little, is found anew before that."""
LEAST = float(np.finfo(np.float32).tiny)
"""A threshold is never zero: zeros are not sent."""
HOST = "how many elements are large is known by looking at them; topk sends a number that is told"


class OkTopK(Together):
    """The largest elements of the sum: about density x n in all, where `TopK` gives every rank those of all ranks.

    A rank sends its elements of at least a threshold to whoever adds up their region of the vector, and of the sums
    those of at least another threshold go to all: 12k(p-1)/p bytes per rank of k elements, whatever they have in
    common.  What does not come back is owed by the ranks that have sent it.  Regions hold about as many pairs each.
    Thresholds are exact in every 32nd call, regions are made anew in every 64th; and a threshold that is four times off
    is found again at once.  Thresholds cost k numbers of 4 bytes to every rank, in these calls.

    `codec`, "fp16" or "bf16": what the values are sent as to who adds them up; what the rounding loses is owed.

    Source: Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022, arXiv 2201.07598;
    without its balancing of what ranks give to all.
    """

    def __init__(self, density: float, codec: str | None = None) -> None:
        self.density, self.codec = checked(density), checked_half(codec, "the values of pairs")

    @property
    def name(self) -> str:
        return joined("oktopk", f"{self.density:g}", self.codec)

    host = HOST

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One sum of all; thresholds are of all together, and each vector keeps them."""
        flat, out, kept = vectors.flat, results.flat, kepts[0]
        k, step = count(self.density, flat.size), int(kept["step"][0]) if kept else 0
        if not k:
            return [Averaged({}, 0) for _ in vectors.parts]
        mine, own = _reach(flat, k, None if step % EVERY == 0 else float(kept["own"][0]))
        ends = kept["ends"] if step % REGIONS else quantiles(comm, mine, flat.size)
        total = None if step % EVERY == 0 else float(kept["total"][0])

        def kept_of(region: Sparse) -> Sparse:
            nonlocal total
            sizes = np.abs(region[1])
            total = _of_all(comm, sizes, k) if total is None else total
            chosen = ~(sizes < total)
            return region[0][chosen], region[1][chosen]

        call = Sum(comm, flat.size, flat.dtype, self.codec, None)
        indices, sums = by_regions(call, (mine, flat[mine]), ends, kept_of)
        out[...] = 0
        out[indices] = sums * single(1 / comm.size)
        came = mine[out[mine] != 0]
        flat[came] = 0 if self.codec is None else flat[came] - rounded(flat[came], self.codec)
        nbytes = itemsize(flat.dtype, self.codec) * (len(mine) + len(indices)) // 2
        fits = k <= OFF * len(indices) <= OFF * OFF * k
        state = {
            "step": np.array([step + 1 if fits or step % EVERY == 0 else 0]), "own": np.array([own]),
            "total": np.array([total]), "ends": ends,
        }  # fmt: skip
        there = finite(sums)
        return [Averaged(dict(state), nbytes * part.size // flat.size, there) for part in vectors.parts]


class SqueezedTopK(DoubleSqueeze):
    """DoubleSqueeze with top-k: of each rank's vector the largest elements, and of its part of the sum, too.

    12k(p-1)/p bytes per rank of k elements.  The owner of a part of the sum keeps what of that is not among its
    largest, and adds it to the next one.

    Source: that of `DoubleSqueeze`.
    """

    def __init__(self, density: float) -> None:
        self.density, self.block = checked(density), 1

    @property
    def name(self) -> str:
        return f"doublesqueeze:topk:{self.density:g}"

    host = HOST

    def _sum(self, comm: Any, rows: Array, came: Array, owned: Array) -> float:
        flat, own, width = rows.reshape(-1), owned[comm.rank], rows.shape[1]
        came[...] = 0
        if not width:
            return 0.0
        mine, _ = _reach(flat, count(self.density, flat.size), None)

        def kept_of(region: Sparse) -> Sparse:
            own[region[0] - comm.rank * width] += region[1]
            chosen, _ = _reach(own, count(self.density, width), None)
            values = own[chosen]
            own[chosen] = 0
            return chosen + comm.rank * width, values

        call = Sum(comm, flat.size, flat.dtype, None, None)
        indices, sums = by_regions(call, (mine, flat[mine]), width * np.arange(1, comm.size), kept_of)
        flat[mine] = 0
        came.reshape(-1)[indices] = sums * single(1 / comm.size)
        return float(itemsize(flat.dtype, None) * (len(mine) + len(indices)) / 2 / flat.size)


def _reach(x: Array, k: int, least: float | None) -> tuple[Array, float]:
    """The indices of the elements of at least that magnitude, ascending, and the threshold.

    None, or one that is far from k elements: the k largest, without zeros, and what all of them reach.
    """
    if least is not None:
        found = not_below(x, least, 2 * k)
        if k <= OFF * len(found) <= OFF * OFF * k:
            return found, least
    found = largest(x, k)
    found = found[x[found] != 0]
    return found, max(LEAST, float(np.abs(x[found]).min())) if len(found) else LEAST


def _of_all(comm: Any, sizes: Array, k: int) -> float:
    """The magnitude of the k-th largest element of all ranks' together."""
    top = np.partition(sizes, len(sizes) - k)[len(sizes) - k :] if len(sizes) > k else sizes
    every = comm.allgatherv(top, comm.allgather(np.array([len(top)])).tolist())
    if len(every) <= k:
        return LEAST
    return max(LEAST, float(np.partition(every, len(every) - k)[len(every) - k]))
