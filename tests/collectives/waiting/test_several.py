"""wait_all, wait_any, test_any."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.waiting.pool import pool
from hocket.errors import ArgumentError
from hocket.extending import drive
from support.worlds import WORLDS, Program, spread


def all_of_them(comm: Communicator) -> None:
    works = [comm.allreduce(np.full(1000, float(n)), async_op=True) for n in range(20)]
    assert hocket.wait_all(works) and all(work.done() for work in works)
    assert [work.result()[0] for work in works] == [float(n * comm.size) for n in range(20)]


def any_of_them(comm: Communicator) -> None:
    """Messages end in the order in which they are sent, not in that of their recvs."""
    if comm.size == 1:
        return
    if comm.rank:
        order = np.zeros(5, int)
        comm.broadcast(order)
        if comm.rank == 1:
            for tag in order:
                comm.send(np.full(3, float(tag)), 0, int(tag))
                comm.recv(np.zeros(1), 0, 99)  # it has come
    else:
        places = [np.zeros(3) for _ in range(5)]
        works = {tag: comm.recv(places[tag], 1, tag, async_op=True) for tag in range(5)}
        assert hocket.test_any([*works.values()]) is None
        begin = time.monotonic()
        assert hocket.wait_any([*works.values()], timeout=0.02) is None and time.monotonic() - begin < 10
        order = np.array([3, 0, 4, 1, 2])
        comm.broadcast(order)
        came = []
        while works:
            tags = [*works]
            place = hocket.wait_any([*works.values()])
            assert place is not None
            came.append(tags[place])
            assert works.pop(tags[place]).result()[0] == tags[place]
            comm.send(np.zeros(1), 1, 99)
        assert came == order.tolist()
    comm.barrier()


def time_is_up(comm: Communicator) -> None:
    if comm.size > 1 and comm.rank == 0:
        work = comm.recv(np.zeros(1), 1, 77, async_op=True)
        done = comm.allgather(1, async_op=True)
        assert not hocket.wait_all([done, work], timeout=0.02)
        comm.send(np.zeros(1), 1, 78)
        assert hocket.wait_all([done, work], timeout=60)
    elif comm.size > 1:
        comm.allgather(1)
        if comm.rank == 1:
            comm.recv(np.zeros(1), 0, 78)
            comm.send(np.zeros(1), 0, 77)
    comm.barrier()


def without_a_hand_off(comm: Communicator) -> None:
    """The thread that waits drives its works itself: it tells nobody to wake it."""
    if comm.size == 1:
        return
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    vars(pool)["add"] = None  # ranks may be threads, who share it
    try:
        for turn in range(20):
            works = [comm.recv(np.zeros(1), left, tag, async_op=True) for tag in (0, 1)]
            comm.barrier()
            time.sleep(0.001 * (turn % 3))
            comm.send(np.ones(1), right, turn % 2)
            assert hocket.wait_any(works) == turn % 2
            comm.barrier()
            comm.send(np.ones(1), right, 1 - turn % 2)
            assert hocket.wait_all(works)
    finally:
        vars(pool).pop("add", None)


def driven_in_order(comm: Communicator) -> None:
    """Callbacks come in the order of the works, in the driving thread; each may wait for one that comes later."""
    calls, last = list[tuple[int, threading.Thread]](), threading.Event()
    works = [comm.recv(np.zeros(1), comm.rank, tag, async_op=True) for tag in range(3)]
    works[0].then(lambda work: calls.append((0, threading.current_thread())))
    works[1].then(lambda work: calls.append((1, threading.current_thread())) or last.wait(60))
    works[2].then(lambda work: last.set())
    later = threading.Timer(0.05, lambda: [comm.send(np.ones(1), comm.rank, tag) for tag in range(3)])
    later.start()
    drive(works, 20)
    later.join()
    assert last.is_set() and calls == [(0, threading.current_thread()), (1, threading.current_thread())], calls
    assert all(work.done() for work in works)
    comm.barrier()


def driven_while_data_moves(comm: Communicator) -> None:
    """A work that has not ended then is told as ever."""
    told = threading.Event()
    out = np.zeros(1)
    work = comm.recv(out, comm.rank, async_op=True)
    work.then(lambda work: told.set())
    drive([work], 0.02)
    assert not work.done() and not told.is_set()
    comm.send(np.ones(1), comm.rank)
    assert told.wait(60) and out[0] == 1


CHECKS: tuple[Program, ...] = (
    all_of_them, any_of_them, time_is_up, without_a_hand_off, driven_in_order, driven_while_data_moves,
)  # fmt: skip


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


def test_an_error_is_raised_by_the_wait() -> None:
    def run(comm: Communicator) -> None:
        work = comm.recv(np.zeros(1), 1 - comm.rank, async_op=True, timeout=0.05)
        with pytest.raises(hocket.TimeoutError):
            hocket.wait_any([work])

    hocket.local_world(2).run(run)


def test_what_is_no_work_is_told() -> None:
    wrong: Any
    for wrong, why in (([], "is empty"), ([np.zeros(1)], "ndarray is not a Work"), ([None], "NoneType is not a Work")):
        for call in (hocket.wait_all, hocket.wait_any, hocket.test_any):
            with pytest.raises(ArgumentError, match=why):
                call(wrong)
