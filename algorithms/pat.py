"""PAT, parallel aggregated trees: logarithmic steps while blocks are few, bounded messages when they are many.

Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale" (arXiv 2506.20252).
Every block travels its own binomial tree, the same one rotated to start at its owner, farthest hop first:
the long way is gone while there is little to carry.  All trees advance together, and the blocks that make
the same hop are aggregated into one message.

How far this follows the paper: the trees, their rotation, farthest-first order, and the change from
aggregated levels to a depth-first walk once a level would exceed the limit, so that only the current branch of
each tree is in transit.  The paper derives the limit from buffer and message size; here it is `MOST` blocks
a message.  Its buffer management is the engine's business.
"""

from __future__ import annotations

from collections.abc import Iterator

from hocket.algorithms.language.compose import mirror
from hocket.algorithms.language.registry import algorithm, cyclic
from hocket.algorithms.language.schedule import Recv, Schedule, Send

MOST = 16
"""Blocks a message; up to 32 ranks every level of the trees is one message."""


def _hops(size: int, most: int) -> Iterator[tuple[int, list[int]]]:
    """The tree over offsets from a block's owner: (distance, offsets that pass it on so far), in order."""
    distance = 1 << (size - 1).bit_length() >> 1
    while distance:
        offsets = list(range(0, size - distance, 2 * distance))
        if len(offsets) > most:
            break
        yield distance, offsets
        distance //= 2
    roots = range(0, size, 2 * distance or 1)
    for hop, offset in _depth_first(0, distance):
        offsets = [root + offset for root in roots if root + offset + hop < size]
        for i in range(0, len(offsets), most):
            yield hop, offsets[i : i + most]


def _depth_first(offset: int, distance: int) -> Iterator[tuple[int, int]]:
    """The hops of one subtree, each branch finished before the next is begun."""
    if distance:
        yield distance, offset
        yield from _depth_first(offset + distance, distance // 2)
        yield from _depth_first(offset, distance // 2)


@algorithm("reduce_scatter", "pat", period=cyclic, repeats=False)
def reduce_scatter(rank: int, size: int, most: int = MOST) -> Schedule:
    """Sums climb all trees at once, nearest hop first.

    ceil(log2 p) steps up to 2*most ranks, about log2(most) + p/most beyond; n(p-1)/p bytes.
    """
    for distance, offsets in reversed(list(_hops(size, most))):
        left = (rank - distance) % size
        yield (
            Send(left, tuple((left - offset) % size for offset in offsets)),
            Recv((rank + distance) % size, tuple((rank - offset) % size for offset in offsets), reduce=True),
        )


@algorithm("allgather", "pat", order="rank", period=cyclic)
def allgather(rank: int, size: int, most: int = MOST) -> Schedule:
    """Blocks come down all trees at once, farthest hop first.

    ceil(log2 p) steps up to 2*most ranks, about log2(most) + p/most beyond; n(p-1)/p bytes.
    """
    return mirror(reduce_scatter(rank, size, most))
