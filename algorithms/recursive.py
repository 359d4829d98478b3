"""Recursive halving and doubling, for any size.

The ranks [lo, hi) are cut into a lower half and an upper half (the lower one larger by at most one) and the
two exchange; the same then happens inside each half.  Rank i of the lower half pairs with rank i of the
upper; where the lower half has one more, its last rank pairs with the first of the upper, which never is an
odd one's partner again.  So there is no folding to a power of two: ceil(log2 p) rounds for every size, and
contiguous halves, which keep rank order.

Rabenseifner, "Optimization of collective reduction operations" (2004); Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH" (2005).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hocket.algorithms.language.compose import mirror, then
from hocket.algorithms.language.registry import algorithm
from hocket.algorithms.language.schedule import Recv, Schedule, Send


class _Halving(NamedTuple):
    """One cut as one rank sees it: its own half, the other half, and its partners there."""

    mine: range
    theirs: range
    gives: int
    takes: tuple[int, ...]


def _rounds(rank: int, size: int) -> Iterator[_Halving | None]:
    """The cuts around a rank, widest first; None when it is alone already and others are not."""
    lo, hi = 0, size
    for _ in range((size - 1).bit_length()):
        if hi - lo == 1:
            yield None
            continue
        mid = hi - (hi - lo) // 2
        lower, upper = range(lo, mid), range(mid, hi)
        odd = len(lower) > len(upper)
        if rank < mid:
            i = rank - lo
            paired = i < len(upper)
            yield _Halving(lower, upper, upper[i if paired else 0], (upper[i],) if paired else ())
            hi = mid
        else:
            i = rank - mid
            yield _Halving(upper, lower, lower[i], (lower[i], lower[-1]) if odd and i == 0 else (lower[i],))
            lo = mid


@algorithm("reduce_scatter", "recursive_halving", repeats=False)
def reduce_scatter(rank: int, size: int) -> Schedule:
    """Hand the other half's blocks over, keep mine, halve again.  ceil(log2 p) steps, about n(p-1)/p bytes."""
    for cut in _rounds(rank, size):
        if cut is None:
            yield ()
        else:
            yield (Send(cut.gives, cut.theirs), *(Recv(peer, cut.mine, reduce=True) for peer in cut.takes))


@algorithm("allgather", "recursive_doubling", order="rank")
def allgather(rank: int, size: int) -> Schedule:
    """Exchange all blocks known so far, twice as many each time.  ceil(log2 p) steps, about n(p-1)/p bytes."""
    return mirror(reduce_scatter(rank, size))


@algorithm(
    "allreduce", "halving_doubling", chunks=lambda size: size, added=lambda size: (size - 1).bit_length(), repeats=False
)
def allreduce(rank: int, size: int) -> Schedule:
    """Rabenseifner: halving reduce-scatter, doubling allgather.  2 ceil(log2 p) steps, about 2n(p-1)/p bytes."""
    return then(reduce_scatter(rank, size), allgather(rank, size))


@algorithm("allreduce", order="rank")
def recursive_doubling(rank: int, size: int) -> Schedule:
    """Exchange the whole sum so far, of twice as many ranks each time.

    ceil(log2 p) steps of n bytes; where the size is odd on the way, one rank sends twice in one step.
    """
    for cut in reversed(list(_rounds(rank, size))):
        if cut is None:
            yield ()
        else:
            yield (*(Send(peer, 0) for peer in cut.takes), Recv(cut.gives, 0, reduce=True))
