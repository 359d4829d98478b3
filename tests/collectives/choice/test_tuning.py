"""The grounds of a choice: counts, prices, interpolation, the file's text, and the choice itself."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.algorithms import get, names
from hocket.algorithms.prediction.model import PRICES, counts, fit, price
from hocket.collectives.choice.choose import choose
from hocket.collectives.choice.fabric import Fabric, candidates, known
from hocket.collectives.choice.tuning import Point, Tuning
from hocket.errors import ArgumentError

KB = 1024
SHM4 = Fabric((4,), "shm", "", 64 * KB)
TCP4 = Fabric((1, 1, 1, 1), "", "tcp", 256 * KB)
MIXED = Fabric((2, 2), "shm", "tcp", 256 * KB)
SIZES = (8, 4 * KB, 64 * KB, 1 << 20)
MADE_UP = (1e-7, 2e-7, 3e-7, 6e-11, 2e-11, 2e-6, 3e-6, 1e-10, 5e-11)


def counted(collective: str, name: str, layout: Fabric, nbytes: int, cores: int = 64) -> dict[str, float]:
    algorithm = known(collective, name, layout)
    assert algorithm is not None
    return dict(zip(PRICES, counts(algorithm, layout.ranks, cores, nbytes, layout.segment, layout.apart), strict=True))


def test_a_ring_counts_what_its_docstring_says() -> None:
    """2(p-1) steps with a message out and one in, 2n(p-1)/p bytes each way, half of what comes reduced."""
    n = 4 * KB
    ring = counted("allreduce", "ring", TCP4, n)
    assert ring["a step across"] == 6 and ring["a message across"] == 12
    assert ring["a byte across"] == 2 * 2 * n * 3 / 4 and ring["a reduced byte"] == n * 3 / 4
    assert ring["a step inside"] == ring["a byte inside"] == 0


def test_inside_a_host_one_write_reaches_all() -> None:
    n = 512
    shot = counted("allreduce", "one_shot", SHM4, n)
    assert shot["a message inside"] == 1 + 3 and shot["a byte inside"] == n + 3 * n
    assert counted("allreduce", "one_shot", TCP4, n)["a byte across"] == 3 * n + 3 * n


def test_segments_are_more_messages_and_more_steps() -> None:
    few, many = (counted("allreduce", "direct", SHM4, n) for n in (4 * KB, 4 << 20))
    assert (few["a step inside"], few["a message inside"]) == (2, 3 + 3 + 1 + 3)
    assert (many["a step inside"], many["a message inside"]) == (2 + 15, 16 * 10)


def test_ranks_that_share_cores_pay_for_each_other() -> None:
    alone, crowded = (counted("allreduce", "one_shot", SHM4, 512, cores) for cores in (4, 2))
    assert all(crowded[what] == 2 * alone[what] for what in ("a step inside", "a message inside", "a byte inside"))
    # Of a broadcast the root does most: two cores are busy with the average of four ranks, or with the root.
    root = counted("broadcast", "direct", SHM4, 512, 2)["a message inside"]
    assert root == counted("broadcast", "direct", SHM4, 512, 4)["a message inside"] * 2


def test_two_levels_count_on_both_transports() -> None:
    two = counted("allreduce", "hierarchical", MIXED, 1 << 20)
    assert two["a byte across"] > 0 and two["a byte inside"] > 0


def every(layout: Fabric, prices: tuple[float, ...] = MADE_UP, cores: int = 2) -> list[Point]:
    """Points of a machine that has these prices."""
    return [
        Point(collective, layout, n, {
            name: price(prices, list(counted(collective, name, layout, n, cores).values()))
            for name in candidates(collective, layout)
        })
        for collective in ("allreduce", "allgather", "broadcast", "reduce") for n in SIZES
    ]  # fmt: skip


def test_the_fit_finds_the_prices_of_a_machine_that_has_some() -> None:
    for layout in (SHM4, TCP4, MIXED):
        tuning = Tuning(every(layout), cores=2)
        for p in tuning.points:
            assert tuning.predicted(p.collective, layout, p.nbytes) == pytest.approx(p.seconds, rel=0.05), p


def test_no_price_is_negative() -> None:
    prices = fit([((1.0, *[0.0] * 8), 1e-6), ((1.0, 5.0, *[0.0] * 7), 0.5e-6)])
    assert min(prices) == 0 and max(prices) > 0


def test_what_was_measured_in_pairs_predicts_other_sizes_but_not_other_transports() -> None:
    tuning = Tuning(every(SHM4), cores=2)
    eight = SHM4._replace(groups=(8,))
    choice = choose(tuning, "allreduce", 4 * KB, eight)
    assert "predicted" in choice.why and choice.seconds
    by_tcp = choose(tuning, "allreduce", 4 * KB, TCP4)
    assert by_tcp == choose(Tuning(), "allreduce", 4 * KB, TCP4) and by_tcp.why.startswith("the built-in table, up to")
    many = SHM4._replace(groups=(100,))
    assert choose(tuning, "allreduce", 4 * KB, many).why == "the built-in table, up to 8 KiB"


def test_between_points_times_are_interpolated() -> None:
    points = [Point("allreduce", SHM4, n, {"ring": t, "direct": 3 * t}) for n, t in ((KB, 1e-6), (16 * KB, 4e-6))]
    tuning = Tuning(points)
    for nbytes, seconds in ((1, 1e-6), (KB, 1e-6), (4 * KB, 2e-6), (16 * KB, 4e-6), (64 * KB, 16e-6)):
        found = tuning.measured("allreduce", SHM4, nbytes)
        assert found == {"ring": pytest.approx(seconds), "direct": pytest.approx(3 * seconds)}
    assert tuning.measured("allreduce", TCP4, KB) == tuning.measured("scan", SHM4, KB) == {}


def test_the_fastest_wins_unless_the_built_in_choice_is_as_fast() -> None:
    usual = choose(Tuning(), "allreduce", 1 << 20, SHM4).name
    for factor, wanted in ((1.2, "ring"), (1.01, usual)):
        tuning = Tuning([Point("allreduce", SHM4, 1 << 20, {"ring": 1e-4, usual: factor * 1e-4, "tree": 9.0})])
        choice = choose(tuning, "allreduce", 1 << 20, SHM4)
        assert (choice.name, choice.why) == (wanted, "the fastest measured")


def test_the_fastest_must_keep_rank_order_and_be_known() -> None:
    tuning = Tuning([Point("allreduce", SHM4, KB, {"ring": 1e-6, "one_shot": 9e-6, "bought_elsewhere": 1e-9})])
    assert choose(tuning, "allreduce", KB, SHM4).name == "ring"
    assert choose(tuning, "allreduce", KB, SHM4, commutative=False).name == "one_shot"


def test_newer_points_replace_those_of_their_layout_only() -> None:
    old = Tuning([Point("allreduce", layout, KB, {"ring": 1.0}) for layout in (SHM4, TCP4)])
    both = old + Tuning([Point("allreduce", SHM4, 2 * KB, {"ring": 2.0})], cores=3)
    assert [(p.layout, p.nbytes) for p in both.points] == [(TCP4, KB), (SHM4, 2 * KB)] and both.cores == 3


def test_text_and_back() -> None:
    tuning = Tuning([*every(SHM4), *every(MIXED)], cores=2)
    again = Tuning.read(tuning.text())
    assert again.text() == tuning.text() and again.cores == 2 and len(again.points) == len(tuning.points)


def test_a_file_that_speaks_of_very_many_ranks_costs_nothing() -> None:
    """No algorithm is built for them."""
    many = Tuning.read(json.dumps(GOOD | {"points": [["allreduce", [[10**7], "shm", "", 1], 8, {"ring": 1}]]}))
    assert len((many + Tuning(every(SHM4))).points) == 1 + len(every(SHM4))


GOOD = json.loads(Tuning(every(SHM4)).text())


BAD = (
    {"format": 1}, {"cores": 0}, {"prices": {"shm": [1.0]}}, {"points": [[]]},
    {"points": [["allreduce", [[4], "shm", "", 1], 8, {"ring": -1}]]},
    {"points": [["allreduce", [[4], "shm", "", 1], 10**400, {"ring": 1}]]},
)  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 100_000, *(json.dumps(GOOD | bad) for bad in BAD)])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="not a file of `hocket tune` .* measure again"):
        Tuning.read(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["format", "points", "x"]), inner),
    max_leaves=8,
)


@given(VALUES, VALUES, VALUES)
def test_any_json_is_read_or_refused(points: object, prices: object, cores: object) -> None:
    with contextlib.suppress(ArgumentError):
        Tuning.read(json.dumps({"format": 2, "points": points, "prices": prices, "cores": cores}))


def test_candidates_run_there() -> None:
    assert set(candidates("allreduce", MIXED)) == {*names("allreduce"), "hierarchical"}
    assert "hierarchical" not in candidates("allreduce", SHM4) and "hierarchical" not in candidates("scan", MIXED)
    for name in candidates("allreduce", SHM4, commutative=False):
        assert get("allreduce", name).order == "rank"
