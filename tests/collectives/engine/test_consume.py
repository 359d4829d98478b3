"""A channel that cannot let go of what was read ends the run, at once and with the right culprit, whoever reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.collectives.plans.instr import Instr
from hocket.conformance.ends import End, Side, pieces
from hocket.transports.adapter import Adapter
from hocket.transports.reference import Pipe

ERRORS = {"lost": ConnectionResetError("it is gone"), "fault": OSError(5, "it is broken")}


class Clinging(Pipe):
    """Its `consume` number `fails` does what it should, and then raises."""

    def __init__(self, fails: int = 0, error: Exception | None = None) -> None:
        super().__init__()
        self.fails, self.error, self.looks = fails, error, 0

    def peek(self, want: int) -> tuple[int, int, bytes] | None:
        self.looks += 1
        return super().peek(want)

    def consume(self, count: int, end: bool) -> None:
        super().consume(count, end)
        self.fails -= 1
        if self.fails == 0 and self.error is not None:
            raise self.error


def end_of(*pipes: Pipe) -> End:
    """Rank 0, which hears of rank i + 1 by pipes[i]."""
    adapters = [Adapter(pipe) for pipe in pipes]
    return End(0, [None, *(Side(a.capsule, a.capsule, a) for a in adapters)])


def failed(end: End, error: str, culprit: int, said: str, pipe: Clinging) -> None:
    assert (said, end.engine.culprit) == (error, culprit)
    assert str(ERRORS[error].args[-1]) in end.engine.channel_error(culprit)
    looks = pipe.looks
    assert end.recv(1, of=culprit, timeout=30)[0] in (error, "aborted")  # nothing but `forget` comes after it
    assert pipe.looks == looks


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("length", "fails"), [(0, 1), (9, 1), (150_000, 2)])
def test_recv(length: int, fails: int, error: str) -> None:
    pipe = Clinging(fails, ERRORS[error])
    for done in range(0, max(length, 1), 60_000):
        pipe.send(1 << 32, length, done, bytes(length)[done : done + 60_000])
        pipe.held = 0
    end = end_of(pipe)
    failed(end, error, 1, end.recv(length, of=1)[0], pipe)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("length", [0, 9])
def test_reduce(length: int, error: str) -> None:
    """The second of three peers has the error."""
    pipes = [Clinging(), Clinging(1, ERRORS[error]), Clinging()]
    for pipe in pipes:
        pipe.send(1 << 32, length, 0, bytes(length))
    end = end_of(*pipes)
    failed(end, error, 2, end.reduce(np.zeros(length, np.uint8), [1, 2, 3])[0], pipes[1])


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("length", [0, 9])
def test_a_message_that_is_set_aside(length: int, error: str) -> None:
    pipe = Clinging(1, ERRORS[error])
    pipe.send(5, length, 0, bytes(length))
    pipe.send(6, 9, 0, bytes(9))
    end = end_of(pipe)
    failed(end, error, 1, end.recv(9, of=1, tag=6)[0], pipe)


def any_of(end: End, into: Any, timeout: float) -> str:
    return end.run(Instr("recv", [1, 2], dst=pieces(1, len(into))), target=into, tag=6, timeout=timeout)


def test_any_peer_is_not_received_from_another_one_in_the_middle() -> None:
    """A peer that is lost before its message leaves the others; in the middle of it the array is half written."""
    pipes = [Clinging(1, ERRORS["lost"]), Clinging()]
    for number, pipe in enumerate(pipes):
        for done in (0, 4):
            pipe.send(6, 8, done, bytes([number] * 4))
    end, into = end_of(*pipes), np.full(8, 9, np.uint8)
    assert (any_of(end, into, 30), end.engine.culprit) == ("lost", 1)
    assert pipes[1].held == 8

    pipes = [Clinging(1, ERRORS["lost"]), Clinging()]
    pipes[0].send(5, 0, 0, b"")  # another tag's, which cannot be set aside
    pipes[1].send(6, 8, 0, b"abcdefgh")
    end = end_of(*pipes)
    assert any_of(end, into, 30) == "done" and into.tobytes() == b"abcdefgh"


