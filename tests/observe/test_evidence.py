"""Which message a wait is for, and what is said where that is not known."""

from __future__ import annotations

import math

import pytest

from hocket.observe.evidence import evidence
from support.one_wait import timeline


def test_a_wait_is_for_the_message_that_ends_next() -> None:
    (wait,) = evidence(timeline(7, 7)).waits
    assert (wait.rank, wait.peer, wait.nbytes) == (1, 0, 1000) and wait.ready == pytest.approx(0.18)
    assert evidence(timeline(7, 7)).blame().seconds[("late", 0)] == pytest.approx(0.08)


@pytest.mark.parametrize("message", [6, 8])
def test_a_message_of_another_call_explains_no_wait(message: int) -> None:
    """The one that it waited for fell out of the trace."""
    (wait,) = evidence(timeline(7, message)).waits
    assert math.isnan(wait.ready) and wait.nbytes == 0
    assert evidence(timeline(7, message)).blame().seconds == {("unsure",): pytest.approx(0.1)}
