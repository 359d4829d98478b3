"""The ring: every rank talks to its two neighbours only, every link carries the same load.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
Optimal bytes; latency grows with p, so it is for long vectors.
"""

from __future__ import annotations

from hocket.algorithms.language.compose import mirror, then
from hocket.algorithms.language.registry import algorithm, cyclic
from hocket.algorithms.language.schedule import Recv, Schedule, Send


@algorithm("reduce_scatter", "ring", pipeline=True, even=True, period=cyclic, repeats=False)
def reduce_scatter(rank: int, size: int) -> Schedule:
    """Each block starts right of its owner and collects its way round to it.  p-1 steps, n(p-1)/p bytes."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(1, size):
        yield Send(right, (rank - i) % size), Recv(left, (rank - i - 1) % size, reduce=True)


@algorithm("allgather", "ring", order="rank", pipeline=True, even=True, period=cyclic)
def allgather(rank: int, size: int) -> Schedule:
    """Each block goes once around the ring, to the left.  p-1 steps, n(p-1)/p bytes."""
    return mirror(reduce_scatter(rank, size))


@algorithm(
    "allreduce", "ring", chunks=lambda size: size, pipeline=True, even=True, period=cyclic,
    added=lambda size: size - 1, repeats=False,
)  # fmt: skip
def allreduce(rank: int, size: int) -> Schedule:
    """Reduce-scatter, then allgather.  2(p-1) steps, 2n(p-1)/p bytes."""
    return then(reduce_scatter(rank, size), allgather(rank, size))
