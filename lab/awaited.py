"""The cost of being told that a call has ended, by a coroutine's `await` or a torch future.

    hocket run -n 2 -- python -m hocket.lab.awaited [--size 1K] [--many 20]

Medians on rank 0 of asynchronous allreduces: waited for; awaited; many coroutines that await at once; the future of
torch's Work (where torch is installed).
"""

from __future__ import annotations

import asyncio
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy

import hocket
from hocket.bench.harness.table import micro
from hocket.lab.program import arguments

CALLS, ROUNDS = 1000, 30


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.awaited", __doc__, argv, size=1024, many=20)
    with hocket.init() as comm:
        x = numpy.zeros(options.size // 4, numpy.float32)
        rows = [("wait", _median(lambda: comm.allreduce(x, async_op=True).wait(), CALLS))]
        rows += asyncio.run(_awaited(comm, x, options.many))
        if importlib.util.find_spec("torch") is not None:
            rows.append(("torch future", _future(x)))
        if comm.rank == 0:
            print(f"| {comm.size} ranks, allreduce of {options.size:,} B | us |\n|---|---|")
            for what, seconds in rows:
                print(f"| {what} | {micro(seconds)} |")
    return 0


async def _awaited(comm: hocket.Communicator, x: numpy.ndarray, many: int) -> list[tuple[str, float]]:
    async def one(mine: numpy.ndarray) -> None:
        await comm.allreduce(mine, async_op=True)

    found = []
    for several, rounds in ((1, CALLS), (many, ROUNDS)):
        arrays, seconds = [x.copy() for _ in range(several)], []
        for _ in range(rounds):
            begin = time.perf_counter()
            await asyncio.gather(*[one(mine) for mine in arrays])
            seconds.append(time.perf_counter() - begin)
        found.append((f"await, {several} at once", statistics.median(seconds)))
    return found


def _future(x: numpy.ndarray) -> float:
    """Over the default communicator's ranks."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("hocket")
    tensor = torch.from_numpy(x)

    def call() -> None:
        work: Any = dist.all_reduce(tensor, async_op=True)
        work.get_future().wait()

    seconds = _median(call, CALLS)
    dist.destroy_process_group()
    return seconds


def _median(call: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
