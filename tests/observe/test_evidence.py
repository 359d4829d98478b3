"""Which message a wait is for, and what is said where that is not known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hocket.observe.evidence import evidence
from hocket.observe.timeline import Timeline, Track, slices
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


def test_a_sum_waits_for_whoever_offers_last() -> None:
    """Rank 2 adds up what ranks 0 and 1 send, from 100 ms on: 0 offers at 110, 1 at 290, and both end at 300."""
    tracks = [
        *(Track(rank, "to 2", False, "sends", "world") for rank in (0, 1)),
        *(Track(2, f"from {rank}", False, "receives", "world") for rank in (0, 1)),
        Track(2, "waits", False, "waits", "world"),
    ]
    made = slices(6)
    made["track"], made["peer"], made["bytes"] = [0, 1, 2, 3, 4, 4], [2, 2, 0, 1, 0, 1], 1000
    made["begin"] = np.array([110, 290, 100, 100, 100, 300]) * 10**6
    made["end"] = np.array([120, 300, 300, 300, 300, 300]) * 10**6
    made["held"][5] = 200 * 10**6  # it began at 100, too: a track shows one behind the other
    made["seq"], made["flow"], made["step"] = 7, [1, 2, 1, 2, 0, 0], 0
    ranks = {str(rank): {"clock": 0, "host": "a", "clock_error_us": 0.0} for rank in range(3)}
    names = {rank: f"rank {rank}" for rank in range(3)}
    proof = evidence(Timeline(names, tracks, ["x"], made, about={"ranks": ranks}))
    (wait,) = proof.waits
    assert (wait.peer, wait.since, wait.until, wait.ready) == (1, 0.1, 0.3, pytest.approx(0.29))
    assert [each.link for each in proof.transfers] == [(1, 2)], "how long the other's was under way is not known"
    assert proof.blame().seconds == {("late", 1): pytest.approx(0.19), ("transfer",): pytest.approx(0.01)}
