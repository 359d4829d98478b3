"""Which message goes to which recv: all small interleavings of arrivals and looks, against MPI's law.

The engine runs on channels whose bytes come into sight one by one, each at a given look at the channel, in the middle
of a pass or between two.  So every moment is tried at which a message can begin, end, or be asked for.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.arrays.buffers import describe
from hocket.collectives.communicator.messenger import ANY_TAG, NEVER, PRIVATE, _plan_of
from hocket.collectives.engine.engine import Engine
from hocket.collectives.plans.instr import IN, OUT, Instr
from hocket.collectives.waiting.queued import Queued
from hocket.transports.adapter import Adapter

LENGTH = 2  # bytes of a message; each comes into sight by itself
ANY = None
WAITS = 255  # what stands in the array of a recv that has taken nothing


@dataclass
class Wire:
    """The messages of one peer.  Byte i is in sight from look `times[i]` on.  A message's bytes name its peer and
    number."""

    peer: int
    tags: Sequence[int]
    times: Sequence[int]
    looks: int = 0
    done: int = 0
    first: int = field(default=0)

    def peek(self, want: int) -> tuple[int, int, bytes] | None:
        self.looks += 1
        seen = sum(time <= self.looks for time in self.times) - self.first * LENGTH
        if seen <= 0 or self.first == len(self.tags):
            return None
        body = bytes([self.peer, self.first])
        return self.tags[self.first], LENGTH, body[self.done : min(seen, LENGTH)]

    def consume(self, count: int, end: bool) -> None:
        self.done += count
        if end:
            assert self.done == LENGTH
            self.first, self.done = self.first + 1, 0

    def send(self, tag: int, length: int, done: int, data: bytes) -> None:
        raise AssertionError("nobody sends here")


@dataclass
class Posted:
    """A recv, or a probe and then the recv of what it has found: from this peer, or ANY, with this tag, or ANY."""

    source: int | None
    tag: int | None
    probes: bool = False
    out: Any = field(default_factory=lambda: np.full(LENGTH, WAITS, np.uint8))
    run: Any = None
    asked: Any = field(default_factory=lambda: np.array([NEVER], np.uint64))
    said: Any = field(default_factory=lambda: np.full(3, NEVER, np.uint64))

    def post(self, engine: Engine, peers: Sequence[int]) -> None:
        source = peers if self.source is ANY else (self.source,)
        src, dst = describe(self.asked), describe(self.said if self.probes else self.out)
        from_there, into = [(IN, 0, src.nbytes)] if self.probes else None, [(OUT, 0, dst.nbytes)]
        step = Instr("probe" if self.probes else "recv", source, src=from_there, dst=into)
        plan, label = _plan_of("recv", "recv()", [step], dst), ANY_TAG if self.tag is ANY else self.tag
        self.run = Queued(engine, plan, src.address, dst.address, tag=label, keep=self)

    def go_on(self, engine: Engine) -> None:
        """Receive at once what a probe has found."""
        if self.probes and self.run.status:
            self.probes, self.source, self.tag = False, int(self.said[0]), int(self.said[1])
            self.post(engine, ())

    def fits(self, peer: int, tag: int) -> bool:
        return self.source in (ANY, peer) and (tag < PRIVATE if self.tag is ANY else tag == self.tag)


def play(wires: Sequence[Wire], recvs: Sequence[Posted], late: int) -> None:
    """Post the recvs, the last `late` of them after the others have seen what they can; then let all bytes come."""
    engine = Engine(0, len(wires) + 1, 1, True)
    engine.thread = threading.get_ident()  # nobody else drives it
    adapters = [(Adapter(wire), Adapter(wire)) for wire in wires]
    for peer, (send, recv) in enumerate(adapters, 1):
        engine.connect(peer, send.capsule, recv.capsule, (send, recv))
    peers = tuple(range(1, len(wires) + 1))

    def drive(some: Posted) -> None:
        some.run.wait(0.0)
        recvs[-1].go_on(engine) if recvs[-1].run is not None else None

    for recv in recvs[: len(recvs) - late]:
        recv.post(engine, peers)
    if late < len(recvs):
        drive(recvs[0])
    for recv in recvs[len(recvs) - late :]:
        recv.post(engine, peers)
    for _ in range(2 * max((time for wire in wires for time in wire.times), default=0) + 8):
        for recv in recvs:
            drive(recv)
    ended = [bool(recv.run.status) for recv in recvs]
    engine.abort()
    for recv, has in zip(recvs, ended, strict=True):
        if not has:
            recv.out[:] = WAITS
        recv.run.wait(0.0)


def judge(wires: Sequence[Wire], recvs: Sequence[Posted]) -> str:
    """Say what is wrong with who took what; "" if nothing is.

    No recv and message that fit prefer each other to what they have: a message the earliest posted recv, a recv the
    oldest message of a peer.
    """
    took = {number: (int(r.out[0]), int(r.out[1])) for number, r in enumerate(recvs) if r.out[0] < WAITS}
    taker = {what: number for number, what in took.items()}
    if len(taker) < len(took):
        return "a message was taken twice"
    for number, recv in enumerate(recvs):
        if number in took and not recv.fits(took[number][0], wires[took[number][0] - 1].tags[took[number][1]]):
            return f"recv {number} took {took[number]}, which is not its"
        for wire in wires:
            for message, tag in enumerate(wire.tags):
                has = took.get(number)
                wants = has is None or (has[0] == wire.peer and has[1] > message)
                if recv.fits(wire.peer, tag) and wants and taker.get((wire.peer, message), len(recvs)) > number:
                    return f"recv {number} should have taken message {message} of peer {wire.peer}, not {has}"
    if recvs[-1].said[0] != NEVER and len(recvs) - 1 not in took:
        return "the message that the probe has found was taken by another"
    return ""


def times(gaps: Sequence[int]) -> list[int]:
    """After how many looks each byte comes, from the looks between them."""
    return list(itertools.accumulate(gaps, initial=1))[1:]


def orders() -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Orders of three messages with two tags: the tags as they are sent, and as they are asked for."""
    for tags in itertools.product((1, 2), repeat=3):
        for asked in sorted(set(itertools.permutations(tags))):
            yield tags, asked


GAPS = list(itertools.product((0, 1, 2), repeat=6))


def one_peer(every: int = 1) -> Iterator[tuple[list[Wire], list[Posted], int]]:
    """Three messages with two tags, three recvs, every gap of 0 to 2 looks, every number of recvs that are late.

    `every`: only one case of so many is made.
    """
    cases = itertools.product(orders(), GAPS, range(4))
    for (tags, asked), gaps, late in itertools.islice(cases, 0, None, every):
        yield [Wire(1, tags, times(gaps))], [Posted(1, tag) for tag in asked], late


def any_tag(every: int = 1) -> Iterator[tuple[list[Wire], list[Posted], int]]:
    """The same, where some of the recvs ask for any tag, and the last may be a probe."""
    cases = itertools.product(orders(), itertools.product((False, True), repeat=3), GAPS, range(4), (False, True))
    for (tags, asked), wild, gaps, late, probes in itertools.islice(cases, 0, None, every):
        recvs = [Posted(1, ANY if any_tag else tag) for tag, any_tag in zip(asked, wild, strict=True)]
        recvs[-1].probes = probes
        yield [Wire(1, tags, times(gaps))], recvs, late


def two_peers(seed: int) -> Iterator[tuple[list[Wire], list[Posted], int]]:
    """Two peers with two messages each, recvs from one of them or from any, with any tag but the library's own."""
    rng = random.Random(seed)
    while True:
        wires = [
            Wire(peer, [rng.choice((1, 2, PRIVATE)) for _ in range(2)], times([rng.randrange(4) for _ in range(4)]))
            for peer in (1, 2)
        ]
        recvs = [Posted(rng.choice((1, 2, ANY)), rng.choice((1, 2, PRIVATE, ANY))) for _ in range(rng.randrange(1, 6))]
        recvs[-1].probes = rng.random() < 0.3
        yield wires, recvs, rng.randrange(len(recvs) + 1)


def walk(cases: Iterator[tuple[list[Wire], list[Posted], int]]) -> int:
    count = 0
    for wires, recvs, late in cases:
        play(wires, recvs, late)
        wrong = judge(wires, recvs)
        assert not wrong, f"{wrong}: {wires}, {[(r.source, r.tag, r.out.tolist()) for r in recvs]}, {late} late"
        count += 1
    return count


def test_one_peer_sampled() -> None:
    assert walk(one_peer(every=23)) > 2500


def test_any_tag_sampled() -> None:
    assert walk(any_tag(every=401)) > 2000


def test_two_peers_sampled() -> None:
    assert walk(itertools.islice(two_peers(7), 2000)) == 2000


@pytest.mark.more
def test_all_of_one_peer() -> None:
    assert walk(one_peer()) == 58_320


@pytest.mark.more
@pytest.mark.timeout(600)
def test_all_of_any_tag() -> None:
    assert walk(any_tag()) == 16 * 58_320


@pytest.mark.more
def test_more_of_two_peers() -> None:
    assert walk(itertools.islice(two_peers(8), 60_000)) == 60_000


def test_many_set_aside() -> None:
    """A message that is set aside is found by its tag at once, however many there are."""

    def program(comm: Any) -> None:
        n, one = 20_000, np.zeros(1)
        if comm.rank == 0:
            for tag in range(n):
                comm.send(np.array([tag]), 1, tag)
            comm.send(one, 1, n)
        else:
            comm.recv(one, 0, n)
            for tag in reversed(range(n)):
                got = np.empty(1, int)
                comm.recv(got, 0, tag)
                assert got[0] == tag

    with hocket.local_world(2) as world:
        world.run(program)
