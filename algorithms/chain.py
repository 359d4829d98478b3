"""The chain: one long line of ranks that ends at the root.

Alone it is the slowest way; cut into k segments it is the fastest for long vectors, p-2+k steps of n/k
bytes, because every link is busy all the time (Traeff et al. call it the pipelined linear ring).
"""

from __future__ import annotations

from hocket.algorithms.language.compose import mirror
from hocket.algorithms.language.registry import algorithm
from hocket.algorithms.language.schedule import Action, Recv, Schedule, Send


@algorithm("reduce", "chain", pipeline=True, repeats=False)
def reduce(rank: int, size: int, root: int) -> Schedule:
    """From the rank left of the root, all the way down to it, adding.  p-1 steps of n bytes, one send each."""
    place = (rank - root) % size  # 0 is the root, the last one begins
    for step in range(size - 1):
        sender = size - 1 - step
        ops: tuple[Action, ...] = ()
        if place == sender:
            ops = (Send((rank - 1) % size, 0),)
        elif place == sender - 1:
            ops = (Recv((rank + 1) % size, 0, reduce=True),)
        yield ops


@algorithm("broadcast", "chain", order="rank", pipeline=True)
def broadcast(rank: int, size: int, root: int) -> Schedule:
    """Each rank passes it on to the next.  p-1 steps of n bytes, one send each."""
    return mirror(reduce(rank, size, root))
