"""A transport that a job opens while a rank leaves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import hocket
from hocket.collectives.job.opener import Opener


class Leaving(SimpleNamespace):
    """A world that is left while it opens a transport: all that it had is closed, and this one comes after that."""

    def add(self, name: str, exchange: Callable[[Any], list[Any]]) -> None:
        self.closed = True
        self.transports[name] = SimpleNamespace(close=lambda: self.said.append("closed"))
        if self.fails:
            raise hocket.PeerLostError("the job is left", [])


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_opened_in_a_world_that_is_left_meanwhile_is_closed(fails: bool) -> None:
    world = Leaving(closed=False, transports={}, said=[], fails=fails, session=SimpleNamespace(open=lambda name: None))
    opener = Opener(world)  # type: ignore[arg-type]
    opener._take_part("tcp")
    assert world.said == ["closed"]
    if fails:
        with pytest.raises(hocket.PeerLostError, match="the job is left"):
            opener.open("tcp", lambda: None)
