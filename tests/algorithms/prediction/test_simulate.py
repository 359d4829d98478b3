"""The simulator agrees with closed forms, loses no byte, gives the same with and without symmetry, refuses in time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf, log2

import pytest

from hocket.algorithms import (
    CONTRACTS,
    Algorithm,
    Link,
    Recv,
    Schedule,
    Send,
    Topology,
    get,
    hierarchical,
    ids,
    names,
    simulate,
    topology,
)
from hocket.algorithms.hierarchical import STAGES
from hocket.algorithms.language.registry import lopsided
from hocket.algorithms.prediction.sharing import Sharing, Transfer
from hocket.errors import ArgumentError, ScheduleError
from support.cases import each
from support.pace import pace

ALL = [get(collective, name) for collective in CONTRACTS for name in names(collective)]
N, A, B = 1 << 20, 20e-6, 125e6
FLAT = Topology(Link(A, B), overhead=0.0, reduction=0.0)
HOSTS = "hosts:2x4,inside=0.3us/10GB,link=20us/1Gbit"

CLOSED: dict[tuple[str, str], Callable[[int], float]] = {
    ("allreduce", "ring"): lambda p: 2 * (p - 1) * (A + N / p / B),
    ("allreduce", "tree"): lambda p: 2 * ceil(log2(p)) * (A + N / B),
    ("allreduce", "recursive_doubling"): lambda p: ceil(log2(p)) * (A + N / B),
    ("allreduce", "halving_doubling"): lambda p: 2 * log2(p) * A + 2 * (p - 1) / p * N / B,
    ("allreduce", "one_shot"): lambda p: A + (p - 1) * N / B,
    ("allreduce", "direct"): lambda p: 2 * (A + (p - 1) * N / p / B),
    ("reduce_scatter", "ring"): lambda p: (p - 1) * (A + N / p / B),
    ("allgather", "bruck"): lambda p: log2(p) * A + (p - 1) / p * N / B,
    ("broadcast", "binomial"): lambda p: log2(p) * (A + N / B),
    ("broadcast", "chain"): lambda p: (p - 1) * (A + N / B),
    ("gather", "direct"): lambda p: A + (p - 1) * N / p / B,
    ("alltoall", "pairwise"): lambda p: (p - 1) * (A + N / p / B),
    ("scan", "linear"): lambda p: (p - 1) * (A + N / B),
}


def label(algorithm: Algorithm) -> str:
    return f"{algorithm.collective}-{algorithm.name}"


@pytest.mark.parametrize(("collective", "name"), CLOSED)
def test_closed_forms(collective: str, name: str) -> None:
    for size in (2, 4, 8, 32):
        found = simulate(get(collective, name), size, N, FLAT)
        assert found.seconds == pytest.approx(CLOSED[collective, name](size), rel=1e-6), size


def test_closed_forms_of_sizes_between_powers_of_two() -> None:
    for size in (3, 5, 13):
        for name in ("ring", "direct"):
            found = simulate(get("allreduce", name), size, N, FLAT)
            assert found.seconds == pytest.approx(CLOSED["allreduce", name](size), rel=1e-6)
        found = simulate(get("allreduce", "tree"), size, N, FLAT)
        assert found.seconds == pytest.approx(CLOSED["allreduce", "tree"](size), rel=0.01)


def test_a_pipeline() -> None:
    """p-2+k steps of n/k bytes, the last segment shorter; a sender does not wait, so the way costs p-1 latencies."""
    segment = 1 << 18
    for size, nbytes, steps in ((2, N, 4), (5, N, 7), (2, N + segment / 2, 4.5)):
        found = simulate(get("broadcast", "chain"), size, nbytes, FLAT, segment=segment)
        assert found.segments == ceil(nbytes / segment)
        assert found.seconds == pytest.approx((size - 1) * A + steps * segment / B, rel=1e-6)
    assert simulate(get("broadcast", "chain"), 5, 2 * segment - 1, FLAT, segment=segment).segments == 1
    assert simulate(get("broadcast", "binomial"), 5, N, FLAT, segment=segment).segments == 1


def test_overhead_and_reduction_cost_what_they_say() -> None:
    ring, one_shot = get("allreduce", "ring"), get("allreduce", "one_shot")
    cpu = replace(FLAT, overhead=3e-6)
    assert simulate(ring, 4, 0, cpu).seconds == pytest.approx(6 * (A + 6e-6))
    assert simulate(one_shot, 4, 0, cpu).seconds == pytest.approx(A + 3 * 6e-6)
    near = topology("hosts:2x2,inside=0.3us/1GB,link=20us/1GB")  # 0.3 us at each end inside, 1 us between hosts
    assert simulate(get("broadcast", "direct"), 2, 0, near).seconds == pytest.approx(3 * 0.3e-6)
    assert simulate(get("broadcast", "direct"), 3, 0, near).seconds == pytest.approx(0.3e-6 + 1e-6 + 20e-6 + 1e-6)
    slow = replace(FLAT, reduction=2 / B)  # twice as long as the link needs for it
    assert simulate(ring, 4, 64 * N, slow).seconds == pytest.approx(3 * 2 * 16 * N / B + 3 * (A + 16 * N / B))
    assert simulate(ring, 4, N, slow).seconds == pytest.approx(3 * (A + 3 * N / 4 / B) + 3 * (A + N / 4 / B))
    quick = replace(FLAT, reduction=1e-3 / B)  # all but the last 256 KiB is added while more arrives
    behind = simulate(get("reduce", "direct"), 2, 16 * N, quick).seconds - A - 16 * N / B
    assert behind == pytest.approx((1 << 18) * 1e-3 / B)


def test_shared_ports_are_shared_fairly() -> None:
    """Ranks 0 and 1 of one host send to two others: half the rate each; a longer one then gets all of it."""
    slow = Topology(Link(0.0, 100.0), ranks=2, hosts=3, inside=Link(0.0, inf), overhead=0.0, reduction=0.0)
    assert _pattern({0: (2, 1), 1: (4, 1)}, slow, 100) == pytest.approx(2)
    assert _pattern({0: (2, 1), 1: (4, 3)}, slow, 100) == pytest.approx(4)
    assert _pattern({0: (2, 1), 3: (4, 1)}, slow, 100) == pytest.approx(1), "in and out do not share"
    assert _pattern({0: (2, 1), 1: (2, 1), 4: (3, 1)}, slow, 100) == pytest.approx(3), "into one host"
    one, all_in = replace(slow, inside=Link(0.0, 100.0)), replace(slow, inside=Link(0.0, 100.0), shared=True)
    assert _pattern({0: (1, 1), 1: (0, 1)}, one, 100) == pytest.approx(1)
    assert _pattern({0: (1, 1), 1: (0, 1)}, all_in, 100) == pytest.approx(2)


def test_what_one_transfer_leaves_the_others_take() -> None:
    """Max-min: b gives its three 30 each, so a's other transfer gets 90; when b's have gone, it shares a by halves."""
    room: dict[str, float] = {"a": 120.0, "b": 90.0}
    sharing: Sharing[Transfer] = Sharing(room.__getitem__)
    alone, both = Transfer("a", 900.0), Transfer("ab", 300.0)
    more = [Transfer("b", 60.0), Transfer("b", 60.0)]
    assert len(sharing.change(0.0, [], [alone, both, *more])) == 4
    assert [t.rate for t in (alone, both, *more)] == pytest.approx([90.0, 30.0, 30.0, 30.0])
    assert (alone.due, more[0].due) == pytest.approx((10.0, 2.0))
    assert sharing.change(2.0, more, []) == [alone, both]
    assert (alone.rate, both.rate) == pytest.approx((60.0, 60.0))
    assert (alone.due, both.due) == pytest.approx((2 + 720 / 60, 2 + 240 / 60))
    assert sharing.change(6.0, [both], []) == [alone]
    assert alone.due == pytest.approx(6 + 480 / 120)


def _pattern(sends: dict[int, tuple[int, int]], there: Topology, chunk: float) -> float:
    """One step in which some ranks send so many chunks to another; how long that takes."""

    def steps(rank: int, size: int, root: int) -> Schedule:
        out = [Send(sends[rank][0], range(sends[rank][1]))] if rank in sends else []
        yield (*out, *(Recv(source, range(n)) for source, (target, n) in sends.items() if target == rank))

    size = there.ranks * there.hosts
    return simulate(Algorithm("allreduce", "pattern", steps, lambda p: 4), size, 4 * chunk, there).seconds


@each("algorithm", ALL)
def test_every_algorithm_of_every_size_ends_and_loses_no_byte(algorithm: Algorithm) -> None:
    """Counted as cost.py counts: chunks sent times the length of a chunk."""
    two_hosts = topology("hosts:3x3,inside=0.3us/10GB,link=20us/1Gbit")
    for size in range(1, 10):
        chunk = N / (size if algorithm.collective == "alltoall" else algorithm.chunks(size))
        for root in {0, size - 1} if CONTRACTS[algorithm.collective].rooted else {0}:
            ops = [
                [op for step in algorithm.steps(rank, size, root) for op in step if isinstance(op, Send)]
                for rank in range(size)
            ]
            sent = [sum(len(ids(op.chunks)) for op in sends) * chunk for sends in ops]
            for there in (FLAT, two_hosts):
                for segment in (0, N // 16):
                    found = simulate(algorithm, size, N, there, root, segment)
                    assert found.messages == sum(map(len, ops)) * found.segments
                    assert found.sent == pytest.approx(max(sent))
                    assert (found.seconds > 0) == (size > 1)
                    assert found.share <= 1 + 1e-9


def test_the_busiest_port() -> None:
    found = simulate(get("reduce", "direct"), 8, N, topology(HOSTS), root=5)
    assert (found.busiest, found.sent) == ("host 0 out", N)
    assert found.share == pytest.approx(4 * N / B / found.seconds) and found.share > 0.98
    racks = topology("racks:2x2x2,inside=1us/10GB,link=1us/10Gbit,uplink=1us/1Gbit")
    assert simulate(get("allreduce", "ring"), 8, N, racks).busiest == "rack 0 up"
    assert simulate(get("allreduce", "ring"), 4, N, racks).busiest == "host 0 out"
    assert simulate(get("broadcast", "direct"), 2, N, racks).busiest == "rank 0 to 1"
    assert simulate(get("allreduce", "ring"), 1, N, FLAT).busiest == ""


def test_uplinks_are_passed_between_racks_only() -> None:
    racks = topology("racks:2x2x1,inside=1us/10GB,link=2us/1Gbit,uplink=7us/0.5Gbit,overhead=0us")
    near, far = (simulate(get("broadcast", "direct"), p, N, racks).seconds for p in (2, 3))
    assert near == pytest.approx(2e-6 + N / B)
    assert far == pytest.approx(9e-6 + 2 * N / B), "one of the two goes up, at half the rate, beside the other"


# --------------------------------------------------------------------------------------------- symmetry


@each("algorithm", ALL)
def test_ranks_a_period_apart_do_the_same(algorithm: Algorithm) -> None:
    for size in range(1, 20):
        _is_periodic(algorithm, size)


@pytest.mark.parametrize("collective", STAGES)
def test_groups_do_the_same_where_they_say_so(collective: str) -> None:
    shortened = 0
    for groups in (((0, 1), (2, 3), (4, 5)), ((0, 1, 2), (3, 4)), ((0, 2), (1, 3))):
        for outer in names(collective):
            algorithm = hierarchical(collective, groups, outer=outer)
            size = sum(map(len, groups))
            shortened += algorithm.period(size) < size
            _is_periodic(algorithm, size)
    assert bool(shortened) == (collective in ("allreduce", "reduce_scatter", "allgather"))


def _is_periodic(algorithm: Algorithm, size: int) -> None:
    period = algorithm.period(size)
    assert size % period == 0
    if period < size:
        for rank in range(size):
            first = rank % period
            here, there = (_seen(algorithm, r, size) for r in (rank, first))
            assert here == there, (rank, first)


def _seen(algorithm: Algorithm, rank: int, size: int) -> list[list[tuple[type, int, int]]]:
    return [
        [(type(op), (op.peer - rank) % size, len(ids(op.chunks))) for op in step if isinstance(op, Send | Recv)]
        for step in algorithm.steps(rank, size, 0)
    ]


@pytest.mark.parametrize(
    "spec",
    ["flat:latency=20us,bandwidth=1Gbit", HOSTS, "racks:2x2x2,inside=1us/9GB/shared,link=5us/9Gbit,uplink=7us/9Gbit"],
)
def test_merged_ranks_change_no_result(spec: str) -> None:
    there, merged = topology(spec), 0
    for algorithm in (*ALL, hierarchical("allreduce", there.groups(8))):
        for nbytes in (8, N, 16 * N):
            quick = simulate(algorithm, 8, nbytes, there, segment=1 << 18)
            slow = simulate(replace(algorithm, period=lopsided), 8, nbytes, there, segment=1 << 18)
            assert slow.simulated == 8
            merged += quick.simulated < 8
            alike = [replace(each, simulated=8, seconds=0, share=0, ends=()) for each in (quick, slow)]
            assert alike[0] == alike[1]
            assert (quick.seconds, quick.share) == pytest.approx((slow.seconds, slow.share), rel=1e-6)
    assert merged > 30


def test_a_host_that_is_not_full_is_no_period() -> None:
    there = topology(HOSTS)
    assert simulate(get("allreduce", "ring"), 7, N, there).simulated == 7
    assert simulate(get("allreduce", "ring"), 8, N, there).simulated == 4
    assert simulate(get("allreduce", "ring"), 4, N, there).simulated == 1


# --------------------------------------------------------------------------------------------- what it is for


@pytest.mark.parametrize("name", ["ring", "direct"])
def test_between_hosts_what_keeps_all_links_busy_is_not_cut(name: str) -> None:
    """Each segment would wait for the latency of the way once more; a rank inside a host has it in its cache."""
    segment, even = 1 << 18, get("allreduce", name)
    slow = topology("flat:latency=5ms,bandwidth=1Gbit")
    whole, cut = (simulate(each, 4, 16 * N, slow, segment=segment) for each in (even, replace(even, even=False)))
    assert (whole.segments, cut.segments) == (1, 16)
    assert whole.seconds < 0.8 * cut.seconds
    assert simulate(even, 4, 16 * N, topology(HOSTS), segment=segment).segments == 16
    assert simulate(get("broadcast", "chain"), 4, 16 * N, slow, segment=segment).segments == 64


def test_two_levels_beat_the_flat_ring_over_slow_links() -> None:
    there = topology(HOSTS)
    levels = simulate(hierarchical("allreduce", there.groups(8)), 8, 16 * N, there, segment=1 << 18)
    ring = simulate(get("allreduce", "ring"), 8, 16 * N, there, segment=1 << 18)
    assert levels.seconds < 0.65 * ring.seconds, "n over each link instead of 1.75 n"


@pytest.mark.parametrize("name", ["recursive_doubling", "double_binary_tree", "ring"])
def test_thousands_of_ranks(name: str) -> None:
    """10,000 take 3.8 s, 1.2 s and 0.3 s (`hocket simulate allreduce --size 10000`)."""
    start = time.process_time()
    found = simulate(get("allreduce", name), 2048, N, FLAT)
    used = time.process_time() - start
    assert used < 4 * pace()
    assert found.seconds > 22 * A


def test_what_would_take_too_long_is_refused() -> None:
    start = time.process_time()
    lame = replace(get("allreduce", "ring"), period=lopsided)
    with pytest.raises(ArgumentError, match="10000 ranks, 1000000 bytes: more than 199,980,000 steps would have to be"):
        simulate(lame, 10_000, 1e6, FLAT)
    with pytest.raises(ArgumentError, match="take fewer ranks or bytes"):
        simulate(get("broadcast", "chain"), 1000, 1 << 30, FLAT, segment=1 << 18)
    used = time.process_time() - start
    assert used < 2 * pace()


def test_so_many_rates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["hocket.algorithms.prediction.simulate"], "MOST_RATES", 1000)
    with pytest.raises(ArgumentError, match="more than 1,000 rates .* a size that fills hosts and racks"):
        simulate(get("alltoall", "direct"), 8, N, topology(HOSTS))  # merged: few enough
        simulate(get("allreduce", "halving_doubling"), 900, N, topology(HOSTS.replace("2x4", "300x4")))


def test_a_schedule_that_waits_for_ever() -> None:
    def steps(rank: int, size: int, root: int) -> Schedule:
        yield (Recv(1 - rank, 0),)

    with pytest.raises(ScheduleError, match=r"ranks \[0, 1\] wait for messages that are never sent"):
        simulate(Algorithm("allreduce", "waiting", steps, lambda p: 1), 2, N, FLAT)


def test_arguments() -> None:
    ring = get("allreduce", "ring")
    with pytest.raises(ArgumentError, match="9 ranks: expected 1 or more, and at most 8, the ranks of this topology"):
        simulate(ring, 9, N, topology(HOSTS))
    for size, nbytes, root, segment in ((0, N, 0, 0), (2, -1, 0, 0), (2, N, 2, 0), (2, N, 0, -1)):
        with pytest.raises(ArgumentError, match="expected 1 or more|root must be 0"):
            simulate(ring, size, nbytes, FLAT, root, segment)
    with pytest.raises(ArgumentError, match="allreduce ring does not run with 3 ranks: too odd"):
        simulate(replace(ring, requires=lambda p: "too odd"), 3, N, FLAT)


def test_ranks_that_come_at_different_times() -> None:
    """Rank 2 comes late to a ring: all wait for it, and those far from it go on last."""
    ring, late = get("allreduce", "ring"), 0.5
    alone = simulate(ring, 4, 4 * N, FLAT).seconds
    found = simulate(ring, 4, 4 * N, FLAT, starts=[0.0, 0.0, late, 0.0])
    assert late + alone <= found.seconds <= late + 1.01 * alone and len(found.ends) == 4
    assert min(found.ends) > late and max(found.ends) == found.seconds
    same = simulate(ring, 4, 4 * N, FLAT, starts=[late] * 4)
    assert same.ends == pytest.approx([late + alone] * 4)
    with pytest.raises(ArgumentError, match="starts has 3 times; expected one for each of 4 ranks"):
        simulate(ring, 4, N, FLAT, starts=[0.0] * 3)
