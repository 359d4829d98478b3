"""Orders by a recorded step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hocket.training.overlap.orders import tac, tic
from hocket.training.overlap.record import Consumer, Recorded, Recording


def recorded(consumers: Sequence[Consumer], count: int) -> Recorded:
    return Recorded(list(range(count)), list(consumers), {})


def makespan(order: Sequence[int], step: Recorded, transfer: Sequence[float]) -> float:
    """When the computation ends if transfers go one after the other in this order."""
    there, clock = {}, 0.0
    for i in order:
        clock += transfer[i]
        there[i] = clock
    ends: list[float] = []
    free = 0.0
    for consumer in step.consumers:
        begin = max([free, *(there[i] for i in consumer.needs), *(ends[i] for i in consumer.after)])
        free = begin + consumer.seconds
        ends.append(free)
    return free


def test_tac_is_the_best_order_of_a_chain() -> None:
    """Layer after layer, as in a forward pass: no order ends sooner, by trying all."""
    for seconds in itertools.product((1.0, 3.0), repeat=4):
        chain = [Consumer(frozenset([i]), s, frozenset([i - 1] if i else [])) for i, s in enumerate(seconds)]
        step, transfer = recorded(chain, 4), [400.0, 100.0, 300.0, 200.0]
        got = tac(step, transfer)
        assert got == tic(step, transfer) == [0, 1, 2, 3]
        assert makespan(got, step, transfer) == min(
            makespan(order, step, transfer) for order in itertools.permutations(range(4))
        )


def test_tac_prefers_what_lets_the_computation_go_on() -> None:
    """Two branches: the short transfer before the long one, though it was declared, and needed, later."""
    step = recorded([Consumer(frozenset([0]), 1.0), Consumer(frozenset([1]), 1.0)], 2)
    assert tac(Recorded(step.made, step.consumers, {0: 9.0, 1: 1.0}), [900, 100]) == [1, 0]
    assert tic(step, [900, 100]) == [0, 1]


def test_tac_takes_what_is_needed_together_one_after_the_other() -> None:
    """TicTac's figure: the consumer of 1 and 2 waits for both, that of 0 for one alone."""
    step = recorded([Consumer(frozenset([1, 2]), 5.0), Consumer(frozenset([0]), 5.0)], 3)
    assert tac(step, [100, 100, 100])[0] == 0


def test_a_recording() -> None:
    noted = Recording()
    for tensor in (2, 0, 1):
        noted.ready(tensor)
    noted.waited(0, 10.0, 10.5, 0.5)
    noted.waited(1, 10.5, 10.6, 0.1)  # at once: both are needed by the same computation
    noted.waited(2, 12.6, 12.7, 0.2)
    noted.ready(2)  # the next step
    step = noted.recorded(4)
    assert step.made == [2, 0, 1, 3] and step.seconds == {0: 0.5, 1: 0.1, 2: 0.2}
    assert [each.needs for each in step.consumers] == [{0, 1}, {2}]
    assert abs(step.consumers[0].seconds - 2.0) < 1e-9 and step.consumers[1].after == {0}
    assert tic(step, [1, 1, 1, 1]) == [0, 1, 2, 3]
