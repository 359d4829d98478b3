"""Two threads receive on a worker's links: a waiting one never waits for what the other has received."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import Client, Rows, serve
from hocket.training.server.worker.handles import Handle
from hocket.training.server.worker.receiving import Receiver
from support.worlds import same, spread


class Lock:
    """The lock of a link on which another thread receives the next frame, just before this one may."""

    def __init__(self, before: Any) -> None:
        self._before, self._lock = before, threading.Lock()

    def acquire(self, timeout: float) -> bool:
        self._before()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


class Link:
    def __init__(self, before: Any) -> None:
        self.open, self.waiting, self.receiving = True, 0, Lock(before)


class Way:
    def __init__(self, before: Any = lambda: None) -> None:
        self.link = Link(before)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_what_another_thread_has_received_is_not_waited_for(parts: int) -> None:
    handle = Handle(None, lambda *_: None)
    first = Way(lambda: handle.end(first, (0, 0), "") if first in handle.ways else None)
    others = [Way() for _ in range(parts - 1)]
    for way in [first, *others]:
        handle.begin(way)
    receiver, received = Receiver(None), []  # type: ignore[arg-type]

    def receive(link: Link, timeout: float | None) -> None:
        assert link is not first.link, "nothing comes there any more"
        way = next(way for way in others if way.link is link)
        handle.end(way, (0, 0), "")
        received.append(way)

    receiver._receive = receive  # type: ignore[assignment, method-assign]
    receiver.wait(handle, parts, None)
    assert received == others and handle.done()


def pulls_in_the_background(comm: Communicator) -> None:
    """Rows of all shards, over and over: a thread for each link, and the caller, receive them."""
    with serve(comm, {"e": Rows(2)}, on=range(comm.size), works=True) as server, Client(server) as client:
        keys = np.arange(64)
        expected = Rows(2).began(keys)
        for _ in range(50):
            same(client.pull("e", rows=keys, async_op=True).wait(), expected, "nobody pushes")
        comm.barrier()


def test_pulls_from_several_servers() -> None:
    spread(pulls_in_the_background, 3, "shm")


def test_a_thread_that_receives_ends_without_a_word_where_its_link_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[object]()
    monkeypatch.setattr(threading, "excepthook", told.append)

    class Ended(Link):
        wanted, driver, pulls = threading.Event(), None, 1

        def __init__(self) -> None:
            super().__init__(lambda: None)
            self.receiving = contextlib.nullcontext()

        def drives(self, count: int) -> None:
            assert count == 1

        def words(self, timeout: float | None) -> None:
            raise hocket.PeerLostError("it is gone", [])

    class Heads:
        over = False

        def lose(self, link: Ended, error: hocket.Error) -> None:
            link.open = False
            raise error  # as for a job of which no part may go

    link = Ended()
    Receiver(Heads()).drive(link)  # type: ignore[arg-type]
    link.driver.join(30)  # type: ignore[attr-defined]
    assert not told and not link.open


def test_a_wait_that_is_over() -> None:
    handle = Handle(None, lambda *_: None)
    handle.begin(Way())

    class Heads:
        who = "rank 1: Client"

    with pytest.raises(hocket.TimeoutError, match="have not answered within 0 s"):
        Receiver(Heads()).wait(handle, 1, 0)  # type: ignore[arg-type]
