"""A link is blamed only where others of its kind carried more meanwhile; else it is the cable that they share."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.observe.attribution import Wait
from hocket.observe.evidence import Sharing
from hocket.observe.findings import find
from hocket.observe.merging import merge
from hocket.observe.sentences import summary
from support.ring_traces import CALLS, Link, computed, good, recorded, ring

HOSTS = {0: "anna", 1: "anna", 2: "berta", 3: "berta", 4: "carla"}
Messages = list[tuple[float, float, int]]
"""Begin, end and bytes."""


def _fault(link: tuple[int, int], messages: dict[tuple[int, int], Messages]) -> object:
    """Whose fault it is that the last message of a link is slow."""
    shared = Sharing(HOSTS, {each: np.array(rows, float).T for each, rows in messages.items()})
    begin, end, nbytes = messages[link][-1]
    return shared.slow(Wait(link[1], link[0], 0, link, nbytes, begin, begin, end))


BURST = [(0.0, 0.0015, 100_000)]
"""66.6 MB/s: a token bucket was full."""
CASES = {
    "a burst before, another time": ({(0, 2): BURST, (1, 3): [(0.002, 0.0645, 100_000)]}, "cable"),
    "a burst beside it": ({(0, 2): BURST, (1, 3): [(0.0, 0.0625, 100_000)]}, "cable"),
    "the cable is full of another's": ({(0, 2): [(0.0, 0.1, 240_000)], (1, 3): [(0.0, 0.1, 10_000)]}, "cable"),
    "alone on its cable, and so is everybody else slow": ({(1, 3): [(0, 0.1, 1000)], (3, 1): [(0, 0.1, 900)]}, "cable"),
    "another cable is quick meanwhile": ({(1, 3): [(0, 0.1, 1000)], (3, 4): [(0.04, 0.05, 1000)]}, "link"),
    "another cable was quick before": ({(1, 3): [(0.1, 0.2, 1000)], (3, 4): [(0.04, 0.05, 1000)]}, "cable"),
    "there was room, and another had it": (
        {(0, 2): [(0.0, 0.01, 1_000_000), (0.011, 0.013, 100_000)], (1, 3): [(0.011, 0.031, 10_000)]}, "link"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_between_hosts(case: str) -> None:
    messages, kind = CASES[case]
    fault = _fault((1, 3), messages)
    assert fault == (("link", 1, 3) if kind == "link" else ("cable", "anna", "berta"))


def test_inside_a_host() -> None:
    slow = [(0.1, 0.2, 1000)]
    assert _fault((0, 1), {(0, 1): slow, (1, 0): [(0.15, 0.151, 1000)]}) == ("link", 0, 1)
    assert _fault((0, 1), {(0, 1): slow, (1, 0): [(0.05, 0.051, 1000)]}) == ("transfer",)
    assert _fault((0, 1), {(0, 1): slow, (2, 3): [(0.15, 0.151, 1000)]}) == ("transfer",), "another host's"


def _summary(link: Link, hosts: tuple[str, ...], compute: float = 5e-3) -> str:
    arrive = [[compute * each / 5e-3 for each in row] for row in computed(4)]
    return "\n".join(summary(find(merge(recorded(4, ring(4, 1 << 20, arrive, link, back=True), hosts)))))


PLACES = ("anna", "anna", "berta", "berta")


def test_a_cable_that_is_full_is_named_with_its_rate_and_no_link_is() -> None:
    """In turns the two links of a cable find its bucket full."""
    turn = iter(range(10**6))

    def bucket(source: int, dest: int, nbytes: int) -> float:
        between = PLACES[source] != PLACES[dest]
        return nbytes / (66e6 if next(turn) % 3 == 0 else 2.5e6) if between else good(source, dest, nbytes)

    said = _summary(bucket, PLACES)
    assert "The cable from host anna to host berta is full: all its links together carried" in said, said
    assert "The link" not in said and f"of {CALLS} calls" in said, said


def test_a_quick_cable_is_not_named() -> None:
    assert "cable" not in _summary(good, PLACES)


def test_a_slow_link_is_still_named() -> None:
    def one(source: int, dest: int, nbytes: int) -> float:
        return 20e-6 + nbytes / 0.05e9 if (source, dest) == (1, 2) else good(source, dest, nbytes)

    assert "The link from rank 1 to rank 2 carried" in _summary(one, ("anna",) * 4)
