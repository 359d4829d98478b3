"""Asynchronous calls: many in flight, in any mixture, on several communicators; `Work` and `group`."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from support.worlds import WORLDS, Program, same, spread

Array = np.ndarray[Any, Any]


def vector(rank: int, i: int, n: int) -> Array:
    return np.arange(n, dtype=np.int64) * (i + 1) + rank


def total(size: int, i: int, n: int) -> Array:
    return size * np.arange(n, dtype=np.int64) * (i + 1) + size * (size - 1) // 2


def in_flight(comm: Communicator) -> None:
    """Issued together, waited for in another order."""
    lengths = [1, 50_000, 17, 3000, 200_000, 0, 8] * 6
    works = [comm.allreduce(vector(comm.rank, i, n), async_op=True) for i, n in enumerate(lengths)]
    for i in [*range(1, len(works), 2), *range(0, len(works), 2)][::-1]:
        same(works[i].result(), total(comm.size, i, lengths[i]), f"work {i}")
        assert works[i].done() and works[i].wait() and works[i].wait(0.1)


def mixed(comm: Communicator) -> None:
    """Asynchronous and blocking calls of all sorts take their turns in the order of issue."""
    works = []
    for i in range(30):
        n = 1 + 977 * i
        works.append((i, n, comm.allreduce(vector(comm.rank, i, n), async_op=True)))
        if i % 3 == 0:
            same(comm.allreduce(vector(comm.rank, i, 5)), total(comm.size, i, 5), f"blocking {i}")
        if i % 3 == 1:
            same(comm.broadcast(vector(comm.rank, i, 9), i % comm.size), vector(i % comm.size, i, 9), f"broadcast {i}")
        if i % 5 == 2:
            gathered = comm.allgather(vector(comm.rank, i, 4), async_op=True)
            comm.barrier()
            assert gathered.done()  # it was queued before the barrier
            same(gathered.result(), np.concatenate([vector(r, i, 4) for r in range(comm.size)]), f"allgather {i}")
    for i, n, work in works:
        same(work.result(), total(comm.size, i, n), f"work {i}")


def every_collective(comm: Communicator) -> None:
    p, me, m = comm.size, comm.rank, 1000
    x = vector(me, 1, p * m)
    block = slice(me * m, me * m + m)
    sum_of_all = total(p, 1, p * m)
    works = {
        "allreduce": (comm.allreduce(x.copy(), async_op=True), sum_of_all),
        "reduce": (comm.reduce(x, 0, async_op=True), sum_of_all if me == 0 else None),
        "reduce_scatter": (comm.reduce_scatter(x, async_op=True), sum_of_all[block]),
        "scan": (comm.scan(x.copy(), async_op=True), total(me + 1, 1, p * m)),
        "broadcast": (comm.broadcast(x.copy(), p - 1, async_op=True), vector(p - 1, 1, p * m)),
        "allgather": (comm.allgather(x, async_op=True), np.concatenate([vector(r, 1, p * m) for r in range(p)])),
        "scatter": (comm.scatter(x, 0, async_op=True), vector(0, 1, p * m)[block]),
        "alltoall": (comm.alltoall(x, async_op=True), np.concatenate([vector(r, 1, p * m)[block] for r in range(p)])),
        "gatherv": (comm.gatherv(x[:me], list(range(p)), 0, async_op=True),
                    np.concatenate([vector(r, 1, p * m)[:r] for r in range(p)]) if me == 0 else None),
        "barrier": (comm.barrier(async_op=True), None),
    }  # fmt: skip
    for name, (work, want) in works.items():
        if want is not None:
            same(work.result(), want, f"asynchronous {name}")
        else:
            work.wait()


def other_order_elsewhere(comm: Communicator) -> None:
    """Communicators are independent: each rank may issue on them, and wait, in an order of its own."""
    comms = [comm.dup() for _ in range(4)]
    mine = [(i + comm.rank) % 4 for i in range(4)]
    for _ in range(5):
        works = {i: comms[i].allreduce(vector(comm.rank, i, 30_000), async_op=True) for i in mine}
        for i in reversed(mine):
            same(works[i].result(), total(comm.size, i, 30_000), f"communicator {i}")
    for made in comms:
        made.close()


def wait_with_limit(comm: Communicator) -> None:
    if comm.rank == 0:
        x = np.ones(3)
        work = comm.allreduce(x, async_op=True)
        began = time.monotonic()
        assert work.wait(timeout=0.2) is False and not work.done()
        assert 0.15 < time.monotonic() - began < 20
        comm.send(np.zeros(1), 1)
        assert work.wait() is True and work.done() and work.result() is x and x[0] == comm.size
    else:
        if comm.rank == 1:
            comm.recv(np.zeros(1), 0)
        comm.allreduce(np.ones(3))
    comm.barrier()


def dropped(comm: Communicator) -> None:
    """Works that nobody keeps go on, their arrays stay alive as long as they are needed, and no longer."""
    kept = []
    for i in range(20):
        x = vector(comm.rank, i, 20_000)
        if i % 2:
            kept.append((i, x))
        comm.allreduce(x, async_op=True)
    x = vector(comm.rank, 0, 100)
    gone = weakref.ref(x)
    comm.allreduce(x, async_op=True)
    del x
    gc.collect()
    comm.barrier()
    for i, x in kept:
        same(x, total(comm.size, i, 20_000), f"dropped work {i}")
    comm.allreduce(np.zeros(1), async_op=True).wait()  # lets go of what has ended
    gc.collect()
    assert gone() is None, "the array of a work that ended is still held"


def dropped_and_closed(comm: Communicator) -> None:
    """close() waits for what is still in flight."""
    twin = comm.dup()
    arrays = [vector(comm.rank, i, 100_000) for i in range(5)]
    for x in arrays:
        twin.allreduce(x, async_op=True)
    twin.close()
    for i, x in enumerate(arrays):
        same(x, total(comm.size, i, 100_000), f"work {i} of a closed communicator")


def grouped(comm: Communicator) -> None:
    with hocket.group() as works:
        arrays = [comm.allreduce(vector(comm.rank, i, 5000)) for i in range(10)]
        rows = comm.allgather(vector(comm.rank, 0, 3))
        with hocket.group():  # nested: part of the outer one
            last = comm.broadcast(vector(comm.rank, 3, 7), 0)
        assert len(works) == 12
    for i, x in enumerate(arrays):
        same(x, total(comm.size, i, 5000), f"call {i} of the group")
    same(rows, np.concatenate([vector(r, 0, 3) for r in range(comm.size)]), "allgather of the group")
    same(last, vector(0, 3, 7), "broadcast of the inner group")


def wait_for_ever(comm: Communicator) -> None:
    """Limits beyond what a clock can tell are none."""
    for limit in (math.inf, 1e300, 2e10):
        if comm.rank == 0:
            time.sleep(0.05)
        work = comm.allreduce(np.ones(3), async_op=True, timeout=limit)
        assert work.wait(limit), f"wait({limit})"
        assert comm.allreduce(np.ones(3), timeout=limit)[0] == comm.size


def premultiplied_in_turn(comm: Communicator) -> None:
    """x is scaled when the call's turn has come, not while an earlier call is at work on it."""
    p = comm.size
    for _ in range(20):
        x, y = np.ones(50_000), np.empty(50_000)
        if comm.rank == 0:
            time.sleep(0.002)
        works = [
            comm.broadcast(x, 0, async_op=True),
            comm.allreduce(x, async_op=True),
            comm.allreduce(x, hocket.premul_sum(2.0), async_op=True),
            comm.allreduce(x, hocket.premul_sum(0.5), y, async_op=True),
        ]
        for work in works:
            work.wait()
        assert (x == 2 * p * p).all() and (y == p**3).all(), (x[0], y[0])


def limit_counts_own_turn(comm: Communicator) -> None:
    """The limit of a queued call counts from its turn, and while nothing moves."""
    works = [comm.allreduce(np.ones(5), async_op=True, timeout=4) for _ in range(6)] if comm.rank == 0 else []
    if comm.rank:
        for _ in range(6):
            time.sleep(0.75)
            comm.allreduce(np.ones(5))
    for work in works:
        work.wait()


def while_computing(comm: Communicator) -> None:
    """Progress without anybody waiting: the result is there after some computing that lets the GIL go."""
    x = vector(comm.rank, 0, 500_000)
    comm.barrier()
    work = comm.allreduce(x, async_op=True)
    a = np.random.default_rng(1).standard_normal((300, 300))
    deadline = time.monotonic() + 30
    while not work.done() and time.monotonic() < deadline:
        a = a @ a
        a /= np.abs(a).max()
    assert work.done(), "no progress while computing"
    same(work.result(), total(comm.size, 0, 500_000), "reduced while computing")
    comm.barrier()


def done_without_wait(comm: Communicator) -> None:
    """done() alone sees the end, whoever brings it about."""
    work = comm.allreduce(vector(comm.rank, 0, 100), async_op=True)
    deadline = time.monotonic() + 30
    while not work.done():
        assert time.monotonic() < deadline, "a queued work never ended"
        time.sleep(0.001)
    same(work.result(), total(comm.size, 0, 100), "done")


def driven_at_once(comm: Communicator) -> None:
    """Two threads that wait drive two communicators side by side: neither op ends before the other one has begun."""
    other = comm.dup()
    both = threading.Barrier(2)

    def add(a: Array, b: Array) -> Array:
        both.wait(60)
        return a + b

    works = [c.allreduce(vector(comm.rank, 1, 8), add, async_op=True) for c in (comm, other)]
    helper = threading.Thread(target=works[1].wait)
    helper.start()
    for work in works:
        same(work.result(), total(comm.size, 1, 8), "reduced by an op")
    helper.join()
    other.close()


def given_back(comm: Communicator) -> None:
    """Once its result is out, a call holds nothing of its caller's, though the caller keeps the handle."""
    data, other = bytearray(2000), (comm.rank + 1) % comm.size
    works = [comm.broadcast(data, async_op=True), comm.send(np.ones(9), other, async_op=True)]
    comm.recv(np.empty(9), (comm.rank - 1) % comm.size)
    for work in works:
        assert work.wait() and work.wait() and work.result() is work.result()
    data.extend(b"more")  # BufferError while somebody has a view of it


def wrong_arguments(comm: Communicator) -> None:
    """An error of this rank's call is raised at the call, and disturbs nobody."""
    with pytest.raises(ArgumentError):
        comm.allreduce(np.ones(4), "plus", async_op=True)
    with pytest.raises(ArgumentError):
        comm.broadcast(np.ones(3), comm.size, async_op=True)
    assert comm.allreduce(np.ones(1), async_op=True).result()[0] == comm.size


CHECKS: tuple[Program, ...] = (
    in_flight, mixed, every_collective, other_order_elsewhere, wait_with_limit, dropped, dropped_and_closed, grouped,
    wait_for_ever, premultiplied_in_turn, limit_counts_own_turn,
    while_computing, done_without_wait, driven_at_once, given_back, wrong_arguments,
)  # fmt: skip
ALONE = (in_flight, mixed, every_collective, grouped, dropped)


@pytest.mark.parametrize(("size", "transport"), [(3, "threads"), *WORLDS])
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS if size > 1 else ALONE, size, transport)


def raises(a: Any, b: Any) -> Any:
    raise ZeroDivisionError("mine")


def wait_for_the_later_of_two(comm: Communicator) -> str:
    comm.allreduce(np.ones(3), raises, async_op=True)
    try:
        comm.allreduce(np.ones(3), async_op=True).wait()
    except (ZeroDivisionError, hocket.Error) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_function_that_raised_in_an_earlier_call() -> None:
    """The later call failed with it; its error is that one's, and at once."""
    with hocket.local_world(2) as world:
        said = world.run(wait_for_the_later_of_two)
    assert "ZeroDivisionError: mine" in said and all("ZeroDivisionError: mine" in each for each in said), said
