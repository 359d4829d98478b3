"""A link keeps nothing that is on its way."""

from __future__ import annotations

import time

import numpy as np

import hocket
from hocket.training.server.wire.frames import Frame, framed
from hocket.training.server.wire.link import SURE, ServerLink
from hocket.training.server.wire.messages import Ack, Answer
from support.worlds import spread

LONG = np.arange(100_000, dtype=np.float32)


def frames(count: int) -> list[Frame]:
    return [framed(0, Answer(1, number, LONG)) for number in range(count)]


def test_what_was_sent_is_let_go() -> None:
    """Posted frames count until they are on their way; the arrays of those that were sent are the caller's again."""

    def end(comm: hocket.Communicator) -> list[int]:
        link = ServerLink(comm.dup())
        if comm.rank:
            for _ in range(8):
                link.frame(lambda *_: False)
            comm.barrier()
            return []
        for frame in frames(5):
            link.send(frame)
        kept = link.ahead
        for frame in frames(3):
            link.post(frame)
        comm.barrier()
        until = time.monotonic() + 20
        while link.ahead and time.monotonic() < until:
            time.sleep(0.001)
        return [kept, link.ahead, len(link._posted)]

    assert hocket.local_world(2).run(end)[0] == [0, 0, 0]


def unread(comm: hocket.Communicator) -> None:
    """All that are posted arrive in order, also where the other end has shown what it has read, or guesses."""
    link = ServerLink(comm.dup(), to_server=True)
    if comm.rank == 0:
        for number in range(2000):
            link.post(framed(0, Ack(1, number, 0)))
            link.shown(number)
        assert link.ahead and not link._sure
        comm.barrier()
        link.drain(0)
        comm.barrier()
        for sure in (0, SURE - 1):  # the first number was with one of the first frames
            link.shown(int(comm.recv(np.zeros(1, np.int64), 1)[0]))
            assert link._sure == sure
            link.post(framed(0, Ack(1, 2000, 0)))
    else:
        comm.barrier()
        shown = 0
        for number in range(2000):
            words = link.header().words
            assert words[3] == number
            shown = words[5] or shown
        comm.barrier()
        for _ in range(2):
            comm.send(np.array([shown]), 0)
            shown = link.header().words[5]


def test_what_is_posted_waits_for_nobody() -> None:
    spread(unread, 2, "shm")
