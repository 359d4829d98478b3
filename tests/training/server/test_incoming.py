"""The readers of a server's links: one worker that stops in the middle of a frame stops nobody else."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import Client, Range, Rows, serve
from hocket.training.server.optimizers import Array
from hocket.training.server.wire.frames import HEADER, PUSH, SHORT, WORDS, framed
from hocket.training.server.worker import ways
from support.cases import more
from support.worlds import same, spread

LONG = 100_000
TABLES = {"long": Range(LONG), "rows": Rows(2), "short": Range(7)}


def goes_on(comm: Communicator) -> None:
    """A stranger says that a megabyte follows, and says no more; one leaves a short frame of nonsense."""
    if comm.rank == 0:
        assert serve(comm, TABLES, on=[0], clock="async").wait(60)
        return
    began = Rows(2).began(np.arange(3))
    with Client(comm, TABLES) as client:
        view = client._heads.view
        assert view is not None
        if comm.rank == 1:
            stops, lies = (hocket.connect(view.addresses[view.heads[0]], timeout=20, like=comm) for _ in range(2))
            stops.send(np.array(framed(0, client._heads._worker).words), 0, HEADER)
            stops.send(np.array([PUSH, 0, client.uid, 1, 0, 0, 4 * LONG, 0]), 0, HEADER)
            lies.send(np.full(8 * WORDS + 5, 255, np.uint8), 0, SHORT)
        for turn in range(1, 4):
            client.push("short", np.ones(7))
            client.push("long", np.ones(LONG))
            client.push("rows", np.ones((3, 2)), rows=np.arange(3))
            assert client.pull("long").min() >= turn, "its own pushes"
        handles = [client.push_pull("short", np.ones(7), async_op=True) for _ in range(20)]
        assert handles[-1].wait().min() >= 23
        while client.pull("short").max() < 23 * (comm.size - 1):
            pass
        same(client.pull("rows", rows=np.arange(3)), began + np.float32(3 * (comm.size - 1)), "all of them once")
        if comm.rank == 1:
            with pytest.raises(hocket.PeerLostError, match="rank 0 failed"):
                lies.recv(np.zeros(1), 0, timeout=60)
            stops.abort(ValueError("a test is over"))


@pytest.mark.parametrize("transport", ["tcp", *more("threads", "shm")])
def test_who_stops_stops_nobody_else(transport: str) -> None:
    spread(goes_on, 3, transport)


def wrong(values: Array, pushed: Array) -> None:
    if pushed[0] < 0:
        raise TypeError("a bug of the user's")
    values += pushed


def goes_on_beside_a_bug(comm: Communicator) -> None:
    tables = {"w": Range(3, optimizer=wrong)}
    if comm.rank == 0:
        assert serve(comm, tables, on=[0], clock="async").wait(60)
        return
    if comm.rank == 1:
        with pytest.raises(hocket.PeerLostError, match="a bug of the user's"), Client(comm, tables) as client:
            client.push("w", -np.ones(3))
        comm.send(np.ones(1), 2)
        return
    with Client(comm, tables) as client:
        client.push("w", np.ones(3))
        comm.recv(np.empty(1), 1)
        client.push("w", np.ones(3))
        same(client.pull("w"), np.full(3, 2.0, np.float32), "the bug changed nothing")


def test_a_bug_in_an_optimizer_ends_the_link_of_its_push() -> None:
    spread(goes_on_beside_a_bug, 3, "shm")


def keeps_what_is_put(comm: Communicator) -> None:
    """Short frames come into memory that is used again; a table that keeps the array gets one of its own."""
    tables = {"kept": Range(30, optimizer="put", slice=40)}
    if comm.rank == 0:
        assert serve(comm, tables, on=[0], clock="async").wait(60)
        return
    with Client(comm, tables) as client:
        first, second = np.arange(30, dtype=np.float32), np.arange(30, 60, dtype=np.float32)
        client.push("kept", first)
        lent = client.pull("kept", async_op=True)
        client.push("kept", second)
        same(lent.wait(), first, "an answer has what was there when it was made")
        same(client.pull("kept"), second, "each slice its own")


@pytest.mark.parametrize("transport", ["threads", *more("shm")])
def test_what_is_put_is_kept(transport: str) -> None:
    spread(keeps_what_is_put, 2, transport)


def heard_while_answers_wait(comm: Communicator) -> None:
    """The answers that fill every buffer of the link are asked for, and not read."""
    tables = {"w": Range(1_000_000)}
    if comm.rank == 0:
        assert serve(comm, tables, on=[0], clock="async").wait(60)
        return
    with Client(comm, tables) as client:
        if comm.rank == 1:
            asked = [client._pull("w", None, None, alone=False) for _ in range(10)]
            pushed = client.push("w", np.ones(1_000_000), async_op=True)
            comm.recv(np.zeros(1), 2, timeout=60)
            assert all(not each.wait().any() for each in asked), "what was there when they were asked"
            pushed.wait()
        else:
            while client.pull("w").min() < 1:
                pass
            comm.send(np.zeros(1), 1)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_pushes_are_heard_while_answers_wait(transport: str) -> None:
    spread(heard_while_answers_wait, 3, transport)


def dies(*_: object) -> None:
    """The words before are on their way: a process that has said nothing is another case."""
    time.sleep(0.5)
    os._exit(0)


def goes_on_without(comm: Communicator) -> None:
    """A worker has made its link, said who it is, and dies before it greets: nobody waits for its clock."""
    tables = {"w": Range(3)}
    if comm.rank == 0:
        assert serve(comm, tables, on=[0], clock="bsp").wait(60)
        return
    if comm.rank == 2:
        ways.Way.greet = dies  # type: ignore[assignment, method-assign]
    with Client(comm, tables) as client:
        client.push("w", np.ones(3))
        client.tick()
        client.tick()
        handle = client.pull("w", async_op=True)
        same(handle.wait(60), np.ones(3, np.float32), "the other one is not waited for")


def test_a_worker_that_dies_between_two_words_is_waited_for_by_nobody() -> None:
    spread(goes_on_without, 3, "shm")
