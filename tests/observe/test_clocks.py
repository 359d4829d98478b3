"""Clocks of made-up networks and of real namespaces, where the truth is known: it lies inside the bound, always."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import ArgumentError
from hocket.observe.clocks import Clock, Gate, Ping, gates, line
from hocket.system.namespaces import hosts as namespaces
from support.two_hosts import job_on

SECOND = 1_000_000_000
DAY = 86_400 * SECOND


def pings(
    seed: int, offset: int, ppm: float, there: float, back: float, bursts: list[int], each: int = 16
) -> list[Ping]:
    """Over a network with these least delays, ns, and exponential queueing on top; the reference is ahead by `offset`,
    and by `ppm` more as time goes."""
    r, found = random.Random(seed), []
    for t in bursts:
        for _ in range(each):
            received = t + there + r.expovariate(1 / 8000)
            answered = received + 1000
            came = answered + back + r.expovariate(1 / 8000)
            ahead = [offset + round(at + ppm * 1e-6 * at) for at in (received, answered)]
            found.append(Ping(t, ahead[0], ahead[1], round(came)))
            t = round(came) + 20_000
    return found


delays = st.floats(500, 60_000)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 1 << 32), st.integers(-400 * DAY, 400 * DAY), st.floats(-90, 90), delays, delays,
    st.lists(st.integers(0, 900), min_size=1, max_size=4, unique=True), st.integers(1, 20),
)  # fmt: skip
def test_the_truth_lies_inside_the_bound(
    seed: int, offset: int, ppm: float, there: float, back: float, at: list[int], each: int
) -> None:
    clock = Clock.fit(gates(pings(seed, offset, ppm, there, back, [s * SECOND for s in sorted(at)], each)))
    assert not clock.breaks
    for t in (s * SECOND for s in (*at, 0, 450, 1000)):
        assert abs(offset + ppm * 1e-6 * t - clock.offset(t)) <= clock.error(t) + 3
    assert clock.drift[0] - 1e-6 <= ppm <= clock.drift[1] + 1e-6


def test_pings_at_both_ends_bind_all_between() -> None:
    clock = Clock.fit(gates(pings(1, DAY, 60, 5000, 5000, [0, 5 * SECOND], 64)))
    assert max(clock.error(t) for t in range(0, 5 * SECOND, SECOND // 4)) < 8000
    assert -5 + 60 < clock.drift[0] <= 60 <= clock.drift[1] < 60 + 5


def test_one_burst_says_little_about_a_minute_later() -> None:
    clock = Clock.fit(gates(pings(7, 0, 50, 5000, 5000, [0])))
    assert clock.error(0) < 20_000 and 5_000_000 < clock.error(60 * SECOND) < 13_000_000
    assert clock.drift == pytest.approx((-200, 200))  # faster is no crystal


@pytest.mark.parametrize("step", [-300_000, -40_000, 40_000, 300_000, DAY])
def test_a_step_is_noticed(step: int) -> None:
    seconds = [0, 10, 20, 30, 40, 50]
    all_pings = pings(3, 0, 20, 3000, 3000, [s * SECOND for s in seconds])
    moved = [p if p.t1 < 25 * SECOND else p._replace(t2=p.t2 + step, t3=p.t3 + step) for p in all_pings]
    clock = Clock.fit(gates(moved))
    (found,) = clock.breaks
    assert 20 * SECOND <= found.after < found.before <= 31 * SECOND
    assert abs(found.ns - step) <= found.error + 1 < 5_000_000
    for t, truth in ((10 * SECOND, 0), (45 * SECOND, step)):
        assert abs(truth + 20e-6 * t - clock.offset(t)) <= clock.error(t) + 3 < 40_000
    assert clock.error(25 * SECOND) >= abs(step) / 2  # it may have been at any time between the two bursts


def test_a_slewed_clock_is_noticed() -> None:
    """60 ppm that come half way."""
    first = pings(1, 0, 0, 3000, 3000, [0, 10 * SECOND])
    second = pings(2, 0, 60, 3000, 3000, [10 * SECOND, 20 * SECOND])
    late = [p._replace(t2=p.t2 - 600_000, t3=p.t3 - 600_000) for p in second]
    assert Clock.fit(gates(first + late)).breaks


def test_too_few_gates_for_another_line_make_no_promise() -> None:
    some = gates(pings(3, 0, 0, 3000, 3000, [0, SECOND]))
    clock = Clock.fit([*some, Gate(2 * SECOND, 500_000, False)])
    assert clock.error(SECOND) < 10_000 and clock.error(2 * SECOND) == math.inf
    assert line([Gate(0, 10, True), Gate(0, 20, False)]) is None
    with pytest.raises(ArgumentError, match="both directions"):
        Clock.fit([Gate(0, 10, True), Gate(5, 20, True)])
    assert gates([Ping(0, 100, 400, 200)]) == []  # stepped back meanwhile


def test_arrays_are_aligned_as_single_times_are() -> None:
    all_pings = pings(3, 5 * DAY, 60, 3000, 3000, [s * SECOND for s in range(6)])
    moved = [p if p.t1 < 3 * SECOND else p._replace(t2=p.t2 + 777_777, t3=p.t3 + 777_777) for p in all_pings]
    clock = Clock.fit(gates(moved))
    times = np.random.default_rng(1).integers(0, 6 * SECOND, 500)
    wanted = np.array([t + clock.offset(int(t)) for t in times])
    assert np.abs(clock.align(times) - wanted).max() <= 2
    assert list(Clock.same().align(times)) == list(times) and Clock.same().error(5) == 0


RANK = """
import os, sys
if int(os.environ["RANK"]) > 1 and "SHIFTED" not in os.environ:
    day = ["unshare", "--time", "--monotonic", "86400", "--boottime", "86400", "--fork", "--kill-child"]
    os.execvpe(day[0], [*day, sys.executable, sys.argv[0]], {**os.environ, "SHIFTED": "1"})
from hocket.observe.clocks import Clock, gates
from hocket.observe.pinging import askers, clock_of_host, ping
comm = hocket.init()
who = askers(comm.share(clock_of_host()))
ping(comm, who, 8)
bounds, wrong = [], []
for _ in range(RUNS):
    found = ping(comm, who)
    time.sleep(0.002)
    found += ping(comm, who)
    if found:
        clock = Clock.fit(gates(found))
        for t in (found[0].t1, found[-1].t4):
            bounds.append(clock.error(t))
            wrong.append(abs(clock.offset(t) + 86_400_000_000_000))
say(who=who, bounds=bounds, wrong=wrong)
comm.close()
"""
WHY_NOT = namespaces.refusal()


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize("runs", [20, pytest.param(1000, marks=pytest.mark.more)])
def test_two_hosts_whose_clocks_are_a_day_apart(runs: int, tmp_path: Path) -> None:
    """Ranks 2 and 3 are in a time namespace, so the truth is known to the nanosecond."""
    with namespaces.hosts() as names, job_on(names, RANK.replace("RUNS", str(runs)), tmp_path) as ranks:
        said = [json.loads(end.out.splitlines()[-1]) for end in ranks.wait(100)]
    assert [each["who"] for each in said] == [[2]] * 4  # one rank of each other clock asks
    bounds, wrong = (np.array(said[2][name]) for name in ("bounds", "wrong"))
    assert len(bounds) == 2 * runs
    assert (wrong <= bounds + 1).all()
    assert np.median(bounds) <= 250_000  # nanoseconds
