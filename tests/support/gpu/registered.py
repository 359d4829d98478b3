"""Calls on registered memory: peers read it where it lies, and nobody may change it before they have.

All of it runs in the ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.system.cuda import driver
from support.gpu.arrays import GpuArray
from support.gpu.ranks import count
from support.gpu.streams import inputs, right

COUNT = 1_500_001
"""float32 elements of a rank: with two ranks and with four, pieces longer than cuda_ipc/protocol.h copies."""
ALGORITHMS = ("direct", "ring", "recursive_doubling", "one_shot", "tree", "halving_doubling")


def copied(comm: Any, x: GpuArray, out: GpuArray, algorithm: str) -> int:
    """Bytes that the driver copies for one call on this rank."""
    before = count("copied")
    comm.allreduce(x, out=out, algorithm=algorithm)
    return count("copied") - before


def everything(comm: Any) -> None:
    stream = driver.device(0).stream()
    whole = GpuArray(2 * COUNT + 1, np.float32, stream=stream)
    x, y = whole.part(1, COUNT + 1), whole.part(COUNT + 1, 2 * COUNT + 1)  # at odd places of one allocation
    copied(comm, x, y, "direct")  # all is there then
    as_before = copied(comm, x, y, "direct")
    comm.register(x)
    comm.register(y)
    turns(comm, x, y)
    # each other rank's share need not be copied before it is sent, nor our own before all have it
    less = as_before - copied(comm, x, y, "direct")
    assert abs(less - COUNT * 4) < 64 * comm.size, f"{less} bytes less are copied, of {as_before}"
    others(comm, x, y)
    driver.device(0).synchronize(stream)
    driver.device(0).end_stream(stream)


def turns(comm: Any, x: GpuArray, y: GpuArray) -> None:
    """A sent array is overwritten as soon as the call has returned, in stream order, and so is one that was received.
    """
    kept = []
    for turn in range(3):
        for algorithm in ALGORITHMS:
            given = inputs(comm.size, COUNT, turn)
            rubbish = np.full(COUNT, 1e6, np.float32)
            kept += [given, rubbish]
            x.set_later(given[comm.rank])
            work = comm.allreduce(x, out=y, algorithm=algorithm, async_op=turn == 2)
            if turn == 2:
                work.wait()
            x.set_later(rubbish)
            right(y, sum(given), f"{algorithm}, turn {turn}")
            x.set_later(given[comm.rank])
            comm.allreduce(x, algorithm=algorithm)
            right(x, sum(given), f"{algorithm} in place, turn {turn}")


def others(comm: Any, x: GpuArray, y: GpuArray) -> None:
    given = inputs(comm.size, COUNT, 9)
    for root in range(comm.size):
        x.set(given[comm.rank])
        comm.broadcast(x, root=root, algorithm="chain" if root else None)
        right(x, given[root], f"broadcast from {root}")
    block = COUNT // comm.size // 16 * 16
    x.set(given[comm.rank])
    comm.alltoall(x.part(0, block * comm.size), out=y.part(0, block * comm.size))
    x.set_later(np.zeros(COUNT, np.float32))
    want = np.concatenate([g[comm.rank * block : (comm.rank + 1) * block] for g in given])
    right(y.part(0, block * comm.size), want, "alltoall")
    x.set(given[comm.rank])
    comm.allgather(x.part(0, block), out=y.part(0, block * comm.size))
    right(y.part(0, block * comm.size), np.concatenate([g[:block] for g in given]), "allgather")
