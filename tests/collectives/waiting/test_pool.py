"""hocket's own threads: who tells of an end holds up nobody, and there are no more of them than are needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.waiting.pool import FREE, Awaited, Pool, pool
from hocket.collectives.waiting.work import Work


class Run:
    """A run, as far as the pool knows it: has it ended?"""

    words = "a run"

    def __init__(self, ended: Callable[[], bool] = lambda: True) -> None:
        self.ended = ended

    @property
    def status(self) -> int:
        return int(self.ended())

    def look(self, seconds: float) -> None:
        pass


class Told:
    """A callback of `run`: does `act`, and tells that it has."""

    def __init__(self, run: Any, act: Callable[[], object] = lambda: None) -> None:
        self.run, self.act, self.told = run, act, threading.Event()

    def add(self) -> Awaited:
        return pool.add(self.run, self)

    def __call__(self) -> None:
        self.act()
        self.told.set()


def own() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hocket-pool"]


def soon(true: Callable[[], bool]) -> bool:
    """Within 20 s."""
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


@pytest.fixture
def alone() -> Pool:
    """The process's pool, with no thread."""
    pool.rest()
    assert not own()
    return pool


def test_each_waits_for_the_next(alone: Pool) -> None:
    """Ten callbacks, each of which ends when the one after it has ended; then the threads are no more than before."""
    chain = [Told(Run())]
    for _ in range(10):
        after = chain[-1].told
        chain.append(Told(Run(), lambda after=after: after.wait(60)))  # type: ignore[misc]
    for one in reversed(chain):
        one.add()
    assert all(one.told.wait(60) for one in chain)
    assert soon(lambda: len(own()) <= FREE)
    alone.rest()
    assert not own()


def test_what_is_over_is_told_before_the_threads_end(alone: Pool) -> None:
    last = [Told(Run()) for _ in range(100)]
    for one in last:
        one.add()
    alone.rest()
    assert all(one.told.wait(60) for one in last) and soon(lambda: not own())


def test_one_whose_callback_fails_is_not_the_last(alone: Pool, caplog: pytest.LogCaptureFixture) -> None:
    Told(Run(), lambda: 1 // 0).add()
    fine = Told(Run())
    fine.add()
    assert fine.told.wait(60) and soon(lambda: "an error in a callback of a run" in caplog.text)
    alone.rest()


def test_what_is_removed_is_not_called(alone: Pool) -> None:
    over = threading.Event()
    gone, stays = Told(Run(over.is_set)), Told(Run(over.is_set))
    added = gone.add()
    stays.add()
    alone.remove([added])
    over.set()
    assert stays.told.wait(60) and not gone.told.is_set()
    alone.remove([added])  # a second time, and with nothing there
    alone.rest()


def test_an_end_is_told_while_every_other_thread_is_in_a_callback() -> None:
    """Whoever has brought it about: a waiting thread of the user's, or the leader."""

    def check(comm: Communicator) -> None:
        for i in range(300):
            work = comm.allreduce(np.ones(2), async_op=True)
            assert isinstance(work, Work)
            told = Told(Run(work.done))
            Told(Run(), lambda told=told: told.told.wait(60)).add()  # type: ignore[misc]
            told.add()
            if i % 2:
                work.wait()
            assert told.told.wait(60), i
            work.wait()

    hocket.local_world(2).run(check)
