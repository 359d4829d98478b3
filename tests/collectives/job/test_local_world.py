"""Ranks that are threads of one process."""

from __future__ import annotations

import sys
import threading

import pytest

import hocket


@pytest.fixture
def restless():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


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
        thread.join(30)
    assert len(done) == 75
