"""Does an alltoall hand blocks on for others?  Then every rank must know the length of every block.

In an alltoallv a rank knows only its own lengths: what it sends to each rank, and gets from each.
"""

from __future__ import annotations

from functools import lru_cache

from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Recv, Send, ids


@lru_cache(maxsize=256)
def relays(algorithm: Algorithm, size: int) -> bool:
    """Does any rank send a block that is not its own, or receive one that is not for it?

    Block s*size + d is from s to d.  All ranks give the same answer: it walks all of them, once for each size.
    """
    for rank in range(size):
        for step in algorithm.steps(rank, size, 0):
            for op in step:
                if isinstance(op, Send) and any(block // size != rank for block in ids(op.chunks)):
                    return True
                if isinstance(op, Recv) and any(block % size != rank for block in ids(op.chunks)):
                    return True
    return False
