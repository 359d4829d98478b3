"""A link keeps nothing that is on its way."""

from __future__ import annotations

import time

import numpy as np

import hocket
from hocket.training.server.wire.frames import Frame, framed
from hocket.training.server.wire.link import Link
from hocket.training.server.wire.messages import Answer

LONG = np.arange(100_000, dtype=np.float32)


def frames(count: int) -> list[Frame]:
    return [framed(0, Answer(1, number, LONG)) for number in range(count)]


def test_what_was_sent_is_let_go() -> None:
    """Posted frames count until they are on their way; the arrays of those that were sent are the caller's again."""

    def end(comm: hocket.Communicator) -> list[int]:
        link = Link(comm.dup())
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
