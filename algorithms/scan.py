"""Prefix reductions: rank r gets the sum of ranks 0..r (scan) or 0..r-1 (exscan).

An exclusive scan is an inclusive one over ranks 1..p-1 after every value has moved one rank up.
"""

from __future__ import annotations

from collections.abc import Callable

from hocket.algorithms.language.registry import algorithm
from hocket.algorithms.language.schedule import Action, Recv, Schedule, Send


@algorithm("scan", "linear", order="rank", pipeline=True)
def linear(rank: int, size: int) -> Schedule:
    """Each rank adds its own and passes on.  p-1 steps of n bytes, one send each."""
    return _linear(rank, size, 0)


@algorithm("scan", "recursive_doubling", order="rank")
def doubling(rank: int, size: int) -> Schedule:
    """Sums of 1, 2, 4... neighbours move up by 1, 2, 4... ranks (Hillis and Steele).  ceil(log2 p) steps of n bytes."""
    return _doubling(rank, size, 0)


@algorithm("exscan", "linear", order="rank", pipeline=True)
def exclusive_linear(rank: int, size: int) -> Schedule:
    """One shift, then the linear scan.  p-1 steps of n bytes, at most two sends each."""
    return _shifted(rank, size, _linear)


@algorithm("exscan", "recursive_doubling", order="rank")
def exclusive_doubling(rank: int, size: int) -> Schedule:
    """One shift, then the doubling scan.  1 + ceil(log2(p-1)) steps of n bytes."""
    return _shifted(rank, size, _doubling)


def _linear(rank: int, size: int, first: int) -> Schedule:
    for step in range(first, size - 1):
        ops: tuple[Action, ...] = ()
        if rank == step:
            ops = (Send(rank + 1, 0),)
        elif rank == step + 1:
            ops = (Recv(rank - 1, 0, reduce=True),)
        yield ops


def _doubling(rank: int, size: int, first: int) -> Schedule:
    distance = 1
    while distance < size - first:
        up = [Send(rank + distance, 0)] if first <= rank < size - distance else []
        down = [Recv(rank - distance, 0, reduce=True)] if rank - distance >= first else []
        yield (*up, *down)
        distance *= 2


def _shifted(rank: int, size: int, scan: Callable[[int, int, int], Schedule]) -> Schedule:
    """Every value one rank up, overwriting, then a scan among ranks 1..p-1."""
    if size > 1:
        up = [Send(rank + 1, 0)] if rank + 1 < size else []
        down = [Recv(rank - 1, 0)] if rank else []
        yield (*up, *down)
        yield from scan(rank, size, 1)
