"""The binomial tree, cut so that every subtree is a contiguous interval of ranks.

The ranks [lo, hi) are cut in halves; the half that holds the leader keeps it, the other is led by its lowest
rank, and the two leaders talk.  For root 0 and a power of two this is the textbook binomial tree.  Any root
leads without renumbering the ranks, so reductions keep rank order and a subtree's blocks are one range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hocket.algorithms.language.compose import mirror, then
from hocket.algorithms.language.registry import algorithm
from hocket.algorithms.language.schedule import Chunks, Recv, Schedule, Send


class _Cut(NamedTuple):
    """One cut: `leader` of the whole interval, and `child`, which leads the interval cut off from it."""

    leader: int
    child: int
    cut_off: range


def _cuts(rank: int, size: int, root: int) -> Iterator[_Cut | None]:
    """The cuts around a rank, widest first; None once it is alone."""
    lo, hi, leader = 0, size, root
    for _ in range((size - 1).bit_length()):
        if hi - lo == 1:
            yield None
            continue
        mid = hi - (hi - lo) // 2
        child, cut_off = (mid, range(mid, hi)) if leader < mid else (lo, range(lo, mid))
        yield _Cut(leader, child, cut_off)
        if rank in cut_off:
            leader = child
        lo, hi = (lo, mid) if rank < mid else (mid, hi)


def _up(rank: int, size: int, root: int, chunks: Callable[[range], Chunks], reduce: bool) -> Schedule:
    for cut in reversed(list(_cuts(rank, size, root))):
        if cut is not None and rank == cut.leader:
            yield (Recv(cut.child, chunks(cut.cut_off), reduce),)
        elif cut is not None and rank == cut.child:
            yield (Send(cut.leader, chunks(cut.cut_off)),)
        else:
            yield ()


@algorithm("reduce", "binomial", order="rank", repeats=False)
def reduce(rank: int, size: int, root: int) -> Schedule:
    """Sums of 1, 2, 4... ranks climb to the root.  ceil(log2 p) steps of n bytes."""
    return _up(rank, size, root, lambda interval: 0, reduce=True)


@algorithm("broadcast", "binomial", order="rank")
def broadcast(rank: int, size: int, root: int) -> Schedule:
    """Twice as many ranks know it after each step.  ceil(log2 p) steps of n bytes."""
    return mirror(reduce(rank, size, root))


@algorithm("gather", "binomial", order="rank")
def gather(rank: int, size: int, root: int) -> Schedule:
    """Whole subtrees climb to the root.  ceil(log2 p) steps; the root takes n(p-1)/p bytes."""
    return _up(rank, size, root, lambda interval: interval, reduce=False)


@algorithm("scatter", "binomial", order="rank")
def scatter(rank: int, size: int, root: int) -> Schedule:
    """Whole subtrees come down from the root.  ceil(log2 p) steps, n(p-1)/p bytes from the root."""
    return mirror(gather(rank, size, root))


@algorithm("allreduce", "tree", order="rank", repeats=False)
def allreduce(rank: int, size: int) -> Schedule:
    """Reduce to rank 0, broadcast from it.  2 ceil(log2 p) steps of n bytes."""
    return then(reduce(rank, size, 0), broadcast(rank, size, 0))
