"""Programs of ranks whose calls are ordered by streams alone: nobody waits for the GPU before the result is read."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np

from hocket.system.cuda import driver
from support.gpu.arrays import GpuArray, put

LEGACY = 1
SIZES = (5, 3001, 300_001)
ALGORITHMS = (None, "ring", "recursive_doubling", "tree", "one_shot", "direct")


def inputs(size: int, count: int, turn: int) -> list[Any]:
    """Whole numbers, so that every order of adding gives the same."""
    return [(np.arange(count) % 97 + 10 * r + turn).astype(np.float32) for r in range(size)]


class Late:
    """An array whose values reach it by its stream, long after the call."""

    def __init__(self, host: Any, stream: int) -> None:
        self.host = host
        self.array = GpuArray(host.shape, host.dtype, stream=stream)
        rubbish = np.full(host.shape, 1e6, host.dtype)
        for _ in range(4):
            self.array.set_later(rubbish)
        self.array.set_later(host)
        self.kept = rubbish


def together(comm: Any, turns: int = 40) -> None:
    """Blocking and asynchronous calls on several streams, the works waited for in an order of each rank's own."""
    device = driver.device(0)
    streams = [LEGACY, device.stream(), device.stream()]
    common, own = random.Random(7), random.Random(comm.rank)
    pending: list[tuple[Any, Late, Any, str]] = []
    for turn in range(turns):
        given = inputs(comm.size, common.choice(SIZES), turn)
        late = Late(given[comm.rank], common.choice(streams))
        algorithm, mixed = common.choice(ALGORITHMS), common.random() < 0.7
        work = comm.allreduce(late.array, algorithm=algorithm, async_op=mixed)
        what = f"turn {turn}, {algorithm}, {len(given[0])} elements, {'asynchronous' if mixed else 'blocking'}"
        if mixed:
            pending.append((work, late, sum(given), what))
        else:
            right(late.array, sum(given), what)
        own.shuffle(pending)
        while pending and own.random() < 0.3:
            finish(pending.pop())
    for each in pending:
        finish(each)
    comm.barrier()
    for stream in streams[1:]:
        device.synchronize(stream)
        device.end_stream(stream)


def finish(pending: tuple[Any, Late, Any, str]) -> None:
    work, late, want, what = pending
    assert work.wait() and work.wait()
    right(late.array, want, what)


def right(array: GpuArray, want: Any, what: str) -> None:
    got = array.get()
    wrong = np.flatnonzero(got != want)
    assert not len(wrong), f"{what}: {len(wrong)} wrong, the first {wrong[0]}: {got[wrong[0]]}, not {want[wrong[0]]}"


def chained(comm: Any) -> None:
    """The results of blocking calls are what the next ones start from; all of it is issued before any is done."""
    x = Late(np.full(70_001, comm.rank + 1, np.float64).astype(np.float32), driver.device(0).stream())
    for _ in range(10):
        comm.allreduce(x.array, "avg")
        comm.broadcast(x.array, root=1)
        comm.allreduce(x.array, "max", algorithm="recursive_doubling")
    mean = sum(range(1, comm.size + 1)) / comm.size
    right(x.array, np.full(70_001, mean, np.float32), "thirty calls, one after the other")
    x.array.gpu.end_stream(x.array.stream)


def met_late(comm: Any) -> None:
    """Rank 0 comes when the others have waited for long, each time in another stream than before."""
    device = driver.device(0)
    streams = [device.stream(), device.stream()]
    for turn in range(6):
        given = inputs(comm.size, 3001, 100 * turn)
        late = Late(given[comm.rank], streams[turn % 2])
        if comm.rank == 0:
            time.sleep(0.01)
        comm.allreduce(late.array, algorithm=("direct", "one_shot")[turn // 2 % 2])
        right(late.array, sum(given), f"turn {turn}, after a wait")
    for stream in streams:
        device.end_stream(stream)


def results(comm: Any) -> None:
    """Results of asynchronous calls, of other collectives than allreduce, and averages; waited for backwards."""
    x = [put(a) for a in inputs(comm.size, 1001, 0)]
    works = [comm.allgather(x[comm.rank], async_op=True), comm.allreduce(x[comm.rank], "avg", async_op=True)]
    blocks = put(np.arange(4 * comm.size, dtype=np.float32))
    works += [comm.reduce_scatter(blocks, async_op=True), comm.alltoall(blocks, async_op=True)]
    got = [work.result() for work in reversed(works)][::-1]
    right(got[0], np.concatenate(inputs(comm.size, 1001, 0)), "allgather")
    right(got[1], sum(inputs(comm.size, 1001, 0)) / comm.size, "avg")
    rows = np.arange(4 * comm.size, dtype=np.float32).reshape(comm.size, 4)[comm.rank]
    right(got[2], rows * comm.size, "reduce_scatter")
    right(got[3], np.tile(rows, comm.size), "alltoall")


def averages(comm: Any) -> None:
    """An average is complete before the next call reads it, whichever work is waited for first."""
    given = inputs(comm.size, 1001, 3)
    x, whole = put(given[comm.rank]), GpuArray(1001 * comm.size, np.float32)
    works = [comm.allreduce(x, "avg", async_op=True), comm.allgather(x, out=whole, async_op=True)]
    for work in reversed(works):
        work.wait()
    right(whole, np.tile(sum(given) / comm.size, comm.size), "what was gathered of an average")
    right(x, sum(given) / comm.size, "the average")


def everything(comm: Any) -> None:
    chained(comm)
    results(comm)
    averages(comm)
    met_late(comm)
    together(comm)
    assert comm.gpus.why_staged == ""
