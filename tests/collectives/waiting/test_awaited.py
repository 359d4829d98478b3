"""Works that coroutines await: loops go on meanwhile, in any order, and who gives up holds up nothing."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from support.worlds import WORLDS, Program, same, spread


def awaited(comm: Communicator) -> None:
    async def one(i: int) -> None:
        mine, p = np.arange(4000) * (i + 1) + comm.rank, comm.size
        total = p * np.arange(4000) * (i + 1) + p * (p - 1) // 2
        same(await comm.allreduce(mine, async_op=True), total, f"awaited {i}")

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticker = asyncio.create_task(tick())
        for i in range(5):
            await one(i)
        await asyncio.gather(*[one(i) for i in range(8)])
        if comm.rank == 0:
            await asyncio.sleep(1.0)  # the others wait meanwhile, and their loops go on
        before = ticks
        await comm.barrier(async_op=True)
        assert comm.rank == 0 or ticks - before > 2, "the loop stood still"
        ticker.cancel()

    asyncio.run(main())
    comm.barrier()


def awaited_in_other_orders(comm: Communicator) -> None:
    """More coroutines than asyncio has threads, each with two calls, in opposite orders on the ranks."""
    comms = [comm.dup() for _ in range(12)]

    async def two(c: Communicator) -> None:
        await c.barrier(async_op=True, timeout=60)
        await c.barrier(async_op=True, timeout=60)

    async def main() -> None:
        if comm.rank == 0:
            await asyncio.gather(*[two(c) for c in comms])
        else:
            for c in reversed(comms):
                await two(c)

    asyncio.run(main())
    for c in comms:
        c.close()


def given_up(comm: Communicator) -> None:
    """A coroutine that no longer waits holds up nothing: its loop ends at once, and the call goes on."""
    peer, began = comm.rank ^ 1, time.monotonic()
    if peer >= comm.size:
        return
    out = np.zeros(1)
    work = comm.recv(out, peer, async_op=True)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(one()), 0.1)

    async def one() -> None:
        await work

    asyncio.run(main())
    assert time.monotonic() - began < 20
    comm.sendrecv(np.ones(1), peer, np.empty(1), peer, tag=1)  # both have given up
    comm.send(np.ones(1), peer)
    work.wait()
    assert out[0] == 1


CHECKS: tuple[Program, ...] = (awaited, awaited_in_other_orders, given_up)


@pytest.mark.parametrize(("size", "transport"), [(3, "threads"), *WORLDS])
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS if size > 1 else awaited, size, transport)
