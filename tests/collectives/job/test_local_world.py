"""Ranks that are threads of one process."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.job.world import World


@pytest.fixture
def restless():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_run_passes_arguments_on() -> None:
    def told(comm: Communicator, a: int, *, b: int) -> tuple[int, int, int]:
        return comm.rank, a, b

    assert hocket.local_world(2).run(told, 3, b=4) == [(0, 3, 4), (1, 3, 4)]


def test_worlds_begin_and_end_side_by_side(restless) -> None:
    """Each looks at the others that are open; one that failed over a half-made one left its ranks waiting."""
    done: list[int] = []

    def several() -> None:
        for _ in range(25):
            with hocket.local_world(3) as world:
                done.append(len(world.comms))

    threads = [threading.Thread(target=several, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(done) == 75


def test_a_rank_that_cannot_begin_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(comm: Communicator, world: World, *args: Any) -> None:
        if world.rank == 1:
            raise MemoryError("no room")
        begins(comm, world, *args)

    begins = Communicator.__init__
    monkeypatch.setattr(Communicator, "__init__", refuses)
    began = time.monotonic()
    with pytest.raises(MemoryError, match="no room"):
        hocket.local_world(3)
    assert time.monotonic() - began < 20  # the meeting's limit is 30 s


@pytest.mark.parametrize("where", ["lane", "split", "world"])
def test_a_rank_that_raises_keeps_nobody_waiting(where: str) -> None:
    """On whichever communicator the others wait."""
    heard: list[str] = []

    def program(comm: hocket.Communicator) -> None:
        comm = {"lane": lambda: comm.lane("apart", 5), "split": lambda: comm.split(0), "world": lambda: comm}[where]()
        if comm.rank == 2:
            raise ValueError("its own fault")
        try:
            comm.allreduce(np.ones(3), async_op=True).result()
        except hocket.PeerLostError as error:
            heard.append(str(error))

    with hocket.local_world(3) as world, pytest.raises(ValueError, match="its own fault"):
        world.run(program)
    assert len(heard) == 2 and all("rank 2 failed: ValueError: its own fault" in text for text in heard), heard
