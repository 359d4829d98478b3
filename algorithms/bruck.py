"""Bruck's algorithms: ceil(log2 p) steps for any size, by distances 1, 2, 4... around the circle.

Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems"
(1997).  Chunk ids name blocks, not places, so the local rotations of the original are not needed.
"""

from __future__ import annotations

from hocket.algorithms.language.registry import algorithm, cyclic
from hocket.algorithms.language.schedule import Recv, Schedule, Send


@algorithm("allgather", "bruck", order="rank", period=cyclic)
def allgather(rank: int, size: int) -> Schedule:
    """Send all blocks known so far a distance 1, 2, 4... to the left.  ceil(log2 p) steps, n(p-1)/p bytes."""
    known = 1
    while known < size:
        count = min(known, size - known)
        right = (rank + known) % size
        yield (
            Send((rank - known) % size, tuple((rank + i) % size for i in range(count))),
            Recv(right, tuple((right + i) % size for i in range(count))),
        )
        known += count


@algorithm("alltoall", "bruck", order="rank", period=cyclic)
def alltoall(rank: int, size: int) -> Schedule:
    """A block that must go j ranks to the right goes by the bits of j.  ceil(log2 p) steps of about n/2 bytes.

    For small blocks.  A rank carries others' blocks on the way: chunks that are neither its input nor its
    result.  At no time does it hold more than p blocks that are still needed.
    """
    distance = 1
    while distance < size:
        left = (rank - distance) % size
        yield (
            Send((rank + distance) % size, _travelling(rank, size, distance)),
            Recv(left, _travelling(left, size, distance)),
        )
        distance *= 2


def _travelling(rank: int, size: int, distance: int) -> tuple[int, ...]:
    """The blocks that stand at this rank and have a hop of that distance before them."""
    blocks = []
    for way in range(1, size):
        if way & distance:
            source = (rank - way % distance) % size
            blocks.append(source * size + (source + way) % size)
    return tuple(blocks)
