"""The number of streams that pays: the machine that decides meets simulated links, without sockets."""

from __future__ import annotations

import random

import pytest

from hocket.transports.tcp.long.width import LADDER, NOTHING, REST, Usage, Width, bound, together


class Link:
    """A link of `rate` bytes/s, of which one stream carries `each`; `why`: "window", "loss", or nothing bounds it."""

    def __init__(self, rate: float, each: float, round_trip: float, why: str = "", by_loss: bool = True) -> None:
        self.rate, self.each, self.round_trip, self.why, self.by_loss = rate, each, round_trip, why, by_loss

    def look(self, streams: int, busy: float, noise: float = 1.0) -> Usage:
        rate = min(self.rate, streams * self.each) * noise
        bounded = streams * self.each < self.rate
        full = busy if self.why == "window" and bounded else 0.0
        return Usage(int(rate * busy), busy, full, 1 if self.why == "loss" else 0, self.round_trip, self.by_loss)


def settled(link: Link, seconds: int = 300, seed: int = 1, most: int = 16) -> tuple[int, int]:
    """The streams at the end, and the number of changes."""
    dice, width, changes, streams = random.Random(seed), Width(most), 0, 1
    for now in range(seconds):
        busy = dice.choice((0.0, 0.02, 0.4, 1.0))
        wanted = width.saw(link.look(streams, busy, dice.uniform(0.95, 1.05)), float(now))
        changes += wanted != streams
        streams = wanted
    return streams, changes


@pytest.mark.parametrize(
    ("link", "streams"),
    [
        (Link(125e6, 26e6, 0.1, "window"), {8}),        # 1 Gbit/s: 8 carry all of it
        (Link(12.5e6, 0.5e6, 0.1, "loss"), {16}),       # 4 Mbit/s each
        (Link(12.5e6, 2.5e6, 0.02, "loss"), {8}),
        (Link(12.5e6, 12e6, 0.1), {1}),                 # the link is full
        (Link(12.5e6, 12.5e6, 0.1, "loss"), {1, 8}),    # its losses are its own queue's: more do not pay
        (Link(12.5e6, 0.5e6, 0.1, "loss", False), {1}), # BBR, which is not bound by them
        (Link(125e6, 26e6, 0.0003, "window"), {1}),     # a LAN is left alone
    ],
)  # fmt: skip
def test_streams_are_as_many_as_pay(link: Link, streams: set[int]) -> None:
    for seed in range(20):
        found, changes = settled(link, seed=seed)
        assert found in streams, (link.why, found)
        assert changes <= 3 * len(LADDER), changes  # it comes to rest


def test_streams_that_begin_slowly_are_waited_for() -> None:
    """Two seconds of sending at the old rate and less, then a fifth more: and looks that see half a call each."""
    before, width, spent = 100e6, Width(), 0.0
    for now in range(12):
        streams, spent = width.streams, spent + 0.5 * (width.streams > 1)
        rate = before * (1.3, 0.7)[now % 2] * (1.2 if spent > 2.0 else 0.9 if streams > 1 else 1.0)
        width.saw(Usage(int(rate * 0.5), 0.5, 0.5 * (now > 1 and streams == 1), 0, 0.1, False), float(now))
    assert width.streams == LADDER[1]


def test_what_did_not_pay_is_tried_ever_more_seldom() -> None:
    width, link, tried = Width(), Link(12.5e6, 12.5e6, 0.1, "loss"), []
    for now in range(2000):
        was = width.streams
        if width.saw(link.look(width.streams, 1.0), float(now)) > was:
            tried.append(now)
    assert len(tried) == 6 and all(c - b > 2 * (b - a) for a, b, c in zip(tried, tried[1:], tried[2:], strict=False))
    assert tried[1] - tried[0] >= REST


def test_no_more_than_can_be_opened() -> None:
    link = Link(125e6, 1e6, 0.1, "window")
    assert settled(link, most=6)[0] == 6
    width = Width()
    for now in range(10):
        width.saw(link.look(width.streams, 1.0), float(now))
    width.limited(3, 10.0, True)
    for now in range(10, 300):
        assert width.saw(link.look(width.streams, 1.0), float(now)) == 3
    width = Width()
    width.limited(1, 0.0, False)
    more = next(now for now in range(300) if width.saw(link.look(width.streams, 1.0), float(now)) > 1)
    assert more >= REST, "what could not be opened now is not asked for at once"


def test_one_stream_that_is_full_beside_others_that_are_not_binds_nothing() -> None:
    full, free, idle = Usage(10**7, 1.0, 0.9, 1, 0.1, False), Usage(10**7, 0.8, 0.0, 2, 0.2, False), together([])
    found = together([full, *[free] * 7, idle])
    assert found[:2] + found[3:] == (8 * 10**7, 1.0, 15, 0.2, False) and idle == NOTHING
    assert not bound(found) and bound(together([full, full, full, free]))


def test_an_idle_link_teaches_nothing() -> None:
    width = Width()
    assert {width.saw(Usage(10, 1e-4, 1e-4, 9, 0.1, True), float(now)) for now in range(100)} == {1}
    assert "Mbit/s" in bound(Usage(10**7, 1.0, 0.5, 0, 0.1, True)) and not bound(Usage(10**7, 1.0, 0.1, 0, 0.1, True))
