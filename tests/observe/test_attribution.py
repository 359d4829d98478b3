"""Blame on simulated rings, where the answer is known: the same run without the fault."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.observe import attribution
from hocket.observe.attribution import Blame, Stay, Transfer, Wait, Without, attribute, usual
from support.ring_traces import CALLS, Link, Ran, computed, good, ring, slow


def blamed(ran: Ran, error: float = 0.0, without: Sequence[Without] = ()) -> Blame:
    found = attribute(ran.waits, ran.stays, usual(ran.transfers), without, lambda one, other: error)
    assert found.total == pytest.approx(ran.waited, abs=1e-9)  # nothing is lost
    assert sum(found.pairs.values()) == pytest.approx(ran.waited, abs=1e-9)
    return found


def run(p: int, late: int | None = None, link: Link = good) -> tuple[Blame, float]:
    """Blame, and what the fault cost: how much longer the ranks waited than without it."""
    ran = ring(p, p << 16, computed(p, late), link)
    return blamed(ran), ran.waited - ring(p, p << 16, computed(p), good).waited


SIZES = pytest.mark.parametrize("p", [2, 3, 4, 8])


@SIZES
def test_nobody_is_blamed_for_a_healthy_run(p: int) -> None:
    found, _ = run(p)
    assert sum(seconds for _, seconds in found.worst("late", "link", "core")) < 0.05 * found.total


@SIZES
def test_a_late_rank(p: int) -> None:
    found, cost = run(p, late=1)
    (name, seconds), *_ = found.worst("late", "link")
    assert name == ("late", 1) and 0.95 < seconds / cost < 1.03
    assert set(range(0, CALLS, 4)) <= {call for call, each in found.calls[name].items() if each > 1e-3}


@SIZES
def test_a_slow_link(p: int) -> None:
    found, cost = run(p, link=slow)
    (name, seconds), *_ = found.worst("late", "link")
    # Far down a long ring each wait also holds the usual transfers of the hops between.
    assert name == ("link", 0, 1) and (0.95 if p < 8 else 0.8) < seconds / cost < 1.05


@pytest.mark.parametrize("p", [3, 4, 8])
def test_both_at_once(p: int) -> None:
    """They hide in each other's shadow, so only their sum is known."""
    found, cost = run(p, late=2, link=slow)
    worst = dict(found.worst("late", "link")[:2])
    assert set(worst) == {("late", 2), ("link", 0, 1)}
    assert (0.93 if p < 8 else 0.8) < sum(worst.values()) / cost < 1.07


@SIZES
def test_clocks_that_disagree_by_less_than_their_bound(p: int) -> None:
    ran, r = ring(p, p << 16, computed(p, 1), good), random.Random(2)
    off = [r.uniform(-20e-6, 20e-6) for _ in range(p)]
    waits = [
        w._replace(ready=min(w.ready + off[w.peer], w.until + off[w.rank]), since=w.since + off[w.rank],
                   until=w.until + off[w.rank])
        for w in ran.waits
    ]  # fmt: skip
    stays = [s._replace(enter=s.enter + off[s.rank], leave=s.leave + off[s.rank]) for s in ran.stays]
    found = blamed(Ran(waits, stays, ran.transfers), error=40e-6)
    assert found.worst("late", "link")[0][0] == ("late", 1)


def test_a_rank_without_a_core_is_told_from_a_late_one() -> None:
    ran = ring(4, 4 << 16, computed(4, late=1), good)
    gaps = [(a.leave, b.enter) for a, b in zip(ran.stays[1::4], ran.stays[5::4], strict=False)]
    found = blamed(ran, without=[Without(1, begin, end) for begin, end in gaps])
    assert found.worst("late", "link", "core")[0][0] == ("core", 1)
    assert found.seconds[("late", 1)] < 0.2 * found.seconds[("core", 1)]


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 5), st.data())
def test_the_parts_of_what_was_waited_add_up_to_it(p: int, data: st.DataObject) -> None:
    """The law holds for anything that could be recorded, possible or not."""
    ranks, times = st.integers(0, p - 1), st.floats(0, 1)
    waits = []
    for rank in range(p):
        ends = sorted(data.draw(st.lists(times, max_size=12)))
        for since, until in zip(ends[::2], ends[1::2], strict=False):
            peer, ready = data.draw(ranks), data.draw(st.one_of(st.floats(-1, 2), st.just(math.nan)))
            waits.append(Wait(rank, peer, data.draw(st.integers(0, 3)), (peer, rank), 100, ready, since, until))
    stays = [
        Stay(rank, call, begin, begin + length)
        for rank, call, begin, length in data.draw(st.lists(st.tuples(ranks, st.integers(0, 3), times, times)))
    ]
    without = [Without(rank, a, a + b) for rank, a, b in data.draw(st.lists(st.tuples(ranks, times, times)))]
    transfers = [Transfer((0, 1), n, t) for n, t in data.draw(st.lists(st.tuples(st.integers(1, 9), times)))]
    ran = Ran(waits, stays, transfers)
    found = blamed(ran, data.draw(st.sampled_from([0.0, 0.01])), without)
    assert min(found.seconds.values(), default=0.0) > -1e-9


def test_the_longest_waits_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MOST", 10)
    found, _ = run(4, late=1)
    assert found.worst("late", "link")[0][0] == ("late", 1) and found.seconds[("unsure",)] > 0


def test_the_usual_is_what_most_links_take_by_size() -> None:
    links = [(0, 1), (1, 2), (2, 0)]
    seen = [Transfer(link, n, (n + 10) * (50 if link == (1, 2) else 1)) for link in links for n in (100, 200, 400)]
    known = usual(seen)
    assert [known((1, 2), n) for n in (100, 150, 200, 400, 800, 0)] == [110, 160, 210, 410, 810, 10]
    assert usual([])((0, 1), 5) == 0.0
    by_kind = usual(seen, lambda link: "far" if link == (1, 2) else "near")
    assert by_kind((1, 2), 100) == 5500 and by_kind((0, 1), 100) == 110
