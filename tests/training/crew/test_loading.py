"""A member sends its state to newcomers before they come: to each in its own time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import hocket
from hocket.training.crew import loading


class Held:
    """A state of one array."""

    position = 0

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x = x

    def arrays(self) -> dict[str, Any]:
        return {"x": self.x}

    def numbers(self) -> dict[str, Any]:
        return {}

    def load(self, numbers: dict[str, Any]) -> None:
        pass


def test_a_newcomer_that_does_not_take_the_state_keeps_no_other_from_it() -> None:
    with hocket.init(elastic=True, make_default=False) as comm:
        server = loading.Donor(comm, Held(np.arange(1e6)))
        address = server._pairs.address
        idle = [hocket.connect(address) for _ in range(2)]  # they never receive
        taken = Held(np.zeros(1_000_000))
        began = time.monotonic()
        loading._take(hocket.connect(address, timeout=10.0), taken, 20.0)
        assert (taken.x == np.arange(1e6)).all() and time.monotonic() - began < 5
        server.close()
        for each in idle:
            each.abort(ValueError("the test is over"))
