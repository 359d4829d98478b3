"""Callbacks of works: called once, when a call has ended, wherever it ended, well or not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.waiting.work import Work
from support.worlds import WORLDS, Program, spread


class Calls:
    """A callback that notes what it was called with, and by which thread."""

    def __init__(self, act: Callable[[Work], Any] = lambda work: None) -> None:
        self.act, self.of, self.told = act, list[tuple[Work, str]](), threading.Event()

    def __call__(self, work: Work) -> None:
        self.of.append((work, threading.current_thread().name))
        try:
            self.act(work)
        finally:
            self.told.set()


def called_once(comm: Communicator) -> None:
    """With its result, in a thread of hocket's; several of one work too."""
    calls = [Calls(lambda work: work.result()[0] == comm.size or 1 / 0) for _ in range(3)]
    work = comm.allreduce(np.ones(1000), async_op=True)
    for each in calls:
        work.then(each)
    assert all(each.told.wait(60) for each in calls)
    comm.barrier()
    for each in calls:
        ((of, thread),) = each.of
        assert of is work and thread in ("hocket-pool", threading.current_thread().name)


def called_at_once(comm: Communicator) -> None:
    work, calls = comm.allreduce(np.ones(10), async_op=True), Calls()
    work.wait()
    work.then(calls)
    assert calls.of == [(work, threading.current_thread().name)]


def called_later(comm: Communicator) -> None:
    """Nobody waits for it, and what it waits for comes after a while."""
    calls, out = Calls(), np.zeros(1)
    work = comm.recv(out, comm.rank, async_op=True)
    work.then(calls)
    assert not calls.told.wait(0.1) and not calls.of
    comm.send(np.full(1, 7.0), comm.rank)
    assert calls.told.wait(60) and out[0] == 7 and calls.of == [(work, "hocket-pool")]


def calls_in_a_callback(comm: Communicator) -> None:
    """Each starts the next call, and waits for it."""
    last = Calls()

    def again(left: int) -> Callable[[Work], object]:
        def call(ended: Work) -> None:
            total = comm.allreduce(ended.result(), async_op=True)
            total.then(again(left - 1) if left else last)
            total.wait()

        return call

    comm.allreduce(np.ones(4), async_op=True).then(again(4))
    assert last.told.wait(60)
    assert last.of[0][0].result()[0] == float(comm.size) ** 6


CHECKS: tuple[Program, ...] = (called_once, called_at_once, called_later, calls_in_a_callback)


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


def test_a_call_that_fails_has_ended_too() -> None:
    def program(comm: Communicator) -> None:
        if comm.rank:
            return
        raised = []

        def note(work: Work) -> None:
            try:
                work.wait()
            except hocket.TimeoutError as error:
                raised.append(error.missing)

        calls = Calls(note)
        comm.allreduce(np.ones(3), async_op=True, timeout=0.1).then(calls)
        assert calls.told.wait(60) and raised == [(1,)]

    hocket.local_world(2).run(program)


def test_an_error_in_a_callback_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    def program(comm: Communicator) -> None:
        def fails(work: Work) -> None:
            raise KeyError("of the callback")

        first, fine = Calls(fails), Calls()
        work = comm.allreduce(np.ones(3), async_op=True)
        work.then(first)
        work.then(fine)
        assert first.told.wait(60) and fine.told.wait(60)
        work.then(fails)  # which is called here
        comm.barrier()

    hocket.local_world(2).run(program)
    deadline, said = time.monotonic() + 60, list[logging.LogRecord]()
    while len(said) < 4 and time.monotonic() < deadline:  # who has told logs after that, and is not waited for
        time.sleep(0.01)
        said = [each for each in caplog.records if "a callback of allreduce(float64[3]" in each.getMessage()]
    assert len(said) == 4 and all("of the callback" in str(record.exc_info) for record in said)
