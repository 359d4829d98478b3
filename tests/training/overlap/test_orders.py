"""The order by a recorded step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hocket.training.overlap.orders import tic
from hocket.training.overlap.record import Recorded, Recording


def makespan(order: Sequence[int], needed: Sequence[Sequence[int]], seconds: Sequence[float]) -> float:
    """When a program ends whose parts compute one after the other, each when its tensors are there."""
    there, clock, free = {}, 0.0, 0.0
    for i in order:
        clock += (400.0, 100.0, 300.0, 200.0)[i]
        there[i] = clock
    for needs, took in zip(needed, seconds, strict=True):
        free = max([free, *(there[i] for i in needs)]) + took
    return free


def test_tic_is_the_best_order_of_a_program() -> None:
    """Part after part, whatever the branches of its model: no order ends sooner, by trying all."""
    for needed in ([[0], [1], [2], [3]], [[2], [0, 1], [3]], [[3, 2], [0], [1]]):
        for seconds in itertools.product((1.0, 300.0), repeat=len(needed)):
            got = tic(Recorded([3, 2, 1, 0], needed))
            orders = itertools.permutations(range(4))
            assert makespan(got, needed, seconds) == min(makespan(order, needed, seconds) for order in orders)


def test_a_recording() -> None:
    noted = Recording()
    for tensor in (2, 0, 1):
        noted.ready(tensor)
    noted.waited(1, 10.0, 10.5)
    noted.waited(0, 10.5, 10.6)  # at once: both are needed by the same computation
    noted.waited(2, 12.6, 12.7)
    noted.ready(2)  # the next step
    step = noted.recorded(4)
    assert step == Recorded([2, 0, 1, 3], [[1, 0], [2]])
    assert tic(step) == [0, 1, 2, 3]
