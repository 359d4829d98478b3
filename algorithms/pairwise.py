"""Pairwise exchange: in step i everybody sends to the rank i to its right.  No link carries two messages."""

from __future__ import annotations

from hocket.algorithms.language.registry import algorithm, cyclic
from hocket.algorithms.language.schedule import Recv, Schedule, Send


@algorithm("alltoall", "pairwise", order="rank", period=cyclic)
def alltoall(rank: int, size: int) -> Schedule:
    """One block out and one in per step.  p-1 steps, n(p-1)/p bytes."""
    for i in range(1, size):
        to, source = (rank + i) % size, (rank - i) % size
        yield Send(to, rank * size + to), Recv(source, source * size + rank)
