"""An asynchronous message, or a short collective, is tried at once in the thread that issues it."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import MismatchError
from support.worlds import in_threads, same, spread

ASLEEP = 0.05
"""Seconds after which hocket's own thread sleeps, if nothing is queued."""
LONG = 8 << 20
"""Bytes for which no channel has room, unless the peer receives."""


def away_at_once(comm: Communicator) -> None:
    """It has left before hocket's own thread could have looked; `done` drives nothing."""
    peer, x, out = comm.rank ^ 1, np.zeros(9), np.zeros(9)
    comm.sendrecv(x, peer, out, peer)
    left = 0
    for tag in range(1, 8):
        waiting = comm.recv(out, peer, tag, async_op=True)  # it holds up no send
        time.sleep(ASLEEP)
        comm.barrier()
        work = comm.send(np.full(9, comm.rank + 0.5 * tag), peer, tag, async_op=True)
        left += work.done()
        assert (waiting.result() == peer + 0.5 * tag).all() and work.wait()
    assert left > 3, left  # not where that thread looks for the recv just then; without: hardly ever


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_send_leaves_from_the_issuing_thread(transport: str) -> None:
    spread(away_at_once, 2, transport)


def there_already(comm: Communicator) -> None:
    """A message that has come is taken, and a call that the others have begun ends, without another thread."""
    out = np.zeros(4)
    comm.allreduce(np.ones(4))
    ended = 0
    for tag in range(8):
        comm.barrier()
        if comm.rank == 1:
            comm.send(np.full(4, 3.0 + tag), 0, tag)
            same(comm.allreduce(np.ones(4)), np.full(4, 2.0), "allreduce")
            continue
        time.sleep(ASLEEP)
        message = comm.recv(out, 1, tag, async_op=True)
        there = message.done()
        assert (message.result() == 3 + tag).all()
        call = comm.allreduce(np.ones(4), async_op=True)
        ended += there and call.done()
        same(call.result(), np.full(4, 2.0), "asynchronous allreduce")
    assert comm.rank or ended > 3, ended  # not where a busy machine kept rank 1 from coming


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_can_end_ends_where_it_is_issued(transport: str) -> None:
    spread(there_already, 2, transport)


def order_is_kept(comm: Communicator) -> None:
    """Behind a message that is stuck the next one to that rank waits; one to another rank does not."""
    long, out = np.full(LONG, 7, np.uint8), np.zeros(LONG, np.uint8)
    short = np.zeros(1, np.uint8)
    if comm.rank == 0:
        stuck = comm.send(long, 1, 5, async_op=True)
        behind, beside = comm.send(short, 1, 5, async_op=True), comm.send(short, 2, 5, async_op=True)
        assert beside.wait() and not stuck.done() and not behind.done()  # at once, if no other thread is at it
        comm.send(short, 2, 6)
        assert stuck.wait() and behind.wait()
    elif comm.rank == 2:
        comm.recv(short, 0, 6)
        comm.recv(short, 0, 5)
        comm.send(short, 1, 6)
    else:
        comm.recv(short, 2, 6)
        assert (comm.recv(out, 0, 5) == 7).all()
        comm.recv(short, 0, 5)
    comm.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_send_overtakes_none_to_the_same_rank(transport: str) -> None:
    spread(order_is_kept, 3, transport)


def collectives_in_order(comm: Communicator) -> None:
    """A short call behind one that waits for a late rank does not begin before it."""
    comm.allreduce(np.ones(3))
    comm.broadcast(np.ones(3), 0)
    comm.barrier()
    if comm.rank == 1:
        comm.recv(np.zeros(1), 0)  # rank 0 has looked
    first = comm.allreduce(np.ones(3), async_op=True)
    second = comm.broadcast(np.full(3, comm.rank + 1.0), 0, async_op=True)  # rank 0 needs nobody to send
    if comm.rank == 0:
        time.sleep(2 * ASLEEP)
        assert not (first.done() or second.done())
        comm.send(np.zeros(1), 1)
    same(first.result(), np.full(3, 2.0), "first")
    same(second.result(), np.ones(3), "second")


def test_a_collective_waits_for_those_before_it() -> None:
    spread(collectives_in_order, 2, "shm")


def lanes(comm: Communicator) -> None:
    """A lower lane that is held begins nothing where it is issued."""
    high, low, x = comm.lane("high", 1), comm.lane("low", -1), np.ones(9)
    peer = comm.rank ^ 1
    for lane in (high, low):
        lane.allreduce(x.copy())
        lane.sendrecv(x, peer, np.zeros(9), peer)
    comm.barrier()
    if comm.rank == 0:
        call = high.allreduce(x.copy(), async_op=True)
        held = low.send(x, 1, 5, async_op=True)
        assert not held.done()
        comm.send(x, 1, 6)
        same(call.result(), np.full(9, 2.0), "high")
        held.wait()
    else:
        comm.recv(np.zeros(9), 0, 6)
        same(high.allreduce(x.copy()), np.full(9, 2.0), "high")
        same(low.recv(np.zeros(9), 0, 5), x, "low")


def test_a_lower_lane_stays_held() -> None:
    spread(lanes, 2, "tcp")


def test_an_error_is_raised_by_the_wait() -> None:
    """A message that does not fit is there when its recv is issued."""

    issued = []

    def run(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.zeros(3), 1)
            return
        comm.probe(0)
        work = comm.recv(np.zeros(4), 0, async_op=True)
        issued.append(work.done())
        work.wait()

    with pytest.raises(MismatchError, match="24 bytes"), hocket.local_world(2) as world:
        world.run(run)
    assert issued == [True]


def test_a_users_function_is_called_by_hockets_own_thread() -> None:
    """A thread that issues a call may have locked what its function locks."""

    def run(comm: Communicator) -> bool:
        called: set[int] = set()

        def add(a: Any, b: Any) -> Any:
            called.add(threading.get_ident())
            return a + b

        comm.barrier()
        if comm.rank == 0:
            time.sleep(ASLEEP)
        work = comm.allreduce(np.ones(2), add, async_op=True)
        while not work.done():
            time.sleep(0.001)
        same(work.result(), np.full(2, 2.0), "sum")
        return bool(called) and threading.get_ident() not in called

    with hocket.local_world(2) as world:
        assert world.run(run) == [True, True]


def busy(comm: Communicator) -> None:
    """Four threads issue messages of all sizes in both directions; each gets what was sent to it, in order."""
    peer = comm.rank ^ 1

    def exchange(tag: int) -> None:
        works: list[tuple[Any, Any, Any]] = []
        for i in range(40):
            n = (1, 40, 3000, 90_000)[(i + tag) % 4]
            x, out = np.full(n, i + 1000 * comm.rank), np.zeros(n, int)
            works.append((comm.recv(out, peer, tag, async_op=True), comm.send(x, peer, tag, async_op=True), out))
            if i % 7 == tag:
                works[-1][0].wait()
        for i, (received, sent, out) in enumerate(works):
            received.wait()
            sent.wait()
            assert (out == i + 1000 * peer).all(), (tag, i)

    in_threads(*[lambda tag=tag: exchange(tag) for tag in range(4)])  # type: ignore[misc]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_threads_that_issue_at_once(transport: str) -> None:
    spread(busy, 2, transport)


def while_finalizers_run(comm: Communicator) -> None:
    """The collector runs anything, at any allocation: here other threads' calls, and a call of its own."""
    lanes = comm.lanes({"first": 0, "second": 1, "of finalizers": 2})
    issued: list[hocket.Work] = []

    class Dropped:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            time.sleep(1e-6)  # as closing a file does, it lets other threads run
            if len(issued) < MOST:
                issued.append(lanes[2].allreduce(np.ones(3), async_op=True))

    def storm(lane: Communicator) -> None:
        for _ in range(2):
            works = []
            for _ in range(1000):
                Dropped()
                works.append(lane.allreduce(np.ones(500), async_op=True))
            assert hocket.wait_all(works, 30)
            assert all((work.result() == comm.size).all() for work in works)

    in_threads(lambda: storm(lanes[0]), lambda: storm(lanes[1]))
    gc.collect()
    assert len(issued) == MOST and hocket.wait_all(issued, 30)
    comm.stats()


MOST = 1000
"""Calls of finalizers: as many on all ranks."""


@pytest.mark.parametrize("transport", ["threads", "shm"])
def test_finalizers_run_while_calls_are_issued(transport: str) -> None:
    spread(while_finalizers_run, 2, transport)
