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
from hocket.collectives.communicator.messages import _plan_of
from hocket.collectives.engine.engine import Engine
from hocket.collectives.plans.instr import OUT, Instr
from hocket.collectives.waiting.queued import Queued
from hocket.transports.adapter import Adapter

LENGTH = 2  # bytes of a message; each comes into sight by itself
ANY = None


@dataclass
class Wire:
    """What one peer sends.  Byte i is in sight from look `times[i]` on.  A message's bytes name its peer and number."""

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
    """A recv: from this peer, or ANY, with this tag."""

    source: int | None
    tag: int
    out: Any = field(default_factory=lambda: np.full(LENGTH, 255, np.uint8))
    run: Any = None

    @property
    def took(self) -> tuple[int, int] | None:
        return (int(self.out[0]), int(self.out[1])) if self.run.status else None


def play(wires: Sequence[Wire], recvs: Sequence[Posted], late: int) -> None:
    """Post the recvs, the last `late` of them after the others have seen what they can; then let all bytes come."""
    engine = Engine(0, len(wires) + 1, 1, True)
    engine.thread = threading.get_ident()  # nobody else drives it
    adapters = [(Adapter(wire), Adapter(wire)) for wire in wires]
    for peer, (send, recv) in enumerate(adapters, 1):
        engine.connect(peer, send.capsule, recv.capsule, (send, recv))
    peers = tuple(range(1, len(wires) + 1))

    def post(recv: Posted) -> None:
        source = peers if recv.source is ANY else (recv.source,)
        buffer = describe(recv.out)
        plan = _plan_of("recv", "recv()", [Instr("recv", source, dst=[(OUT, 0, LENGTH)])], buffer)
        recv.run = Queued(engine, plan, 0, buffer.address, tag=recv.tag, keep=recv.out)

    for recv in recvs[: len(recvs) - late]:
        post(recv)
    if late < len(recvs):
        recvs[0].run.wait(0.0)
    for recv in recvs[len(recvs) - late :]:
        post(recv)
    for _ in range(2 * max((time for wire in wires for time in wire.times), default=0) + 8):
        for recv in recvs:
            recv.run.wait(0.0)
    engine.abort()
    for recv in recvs:
        if not recv.run.status:
            recv.out[:] = 254
        recv.run.wait(0.0)


def judge(wires: Sequence[Wire], recvs: Sequence[Posted]) -> str:
    """What is wrong with who took what; "" if nothing is."""
    took = {number: (int(r.out[0]), int(r.out[1])) for number, r in enumerate(recvs) if r.out[0] < 254}
    for number, (peer, message) in took.items():
        recv, tag = recvs[number], wires[peer - 1].tags[message]
        if tag != recv.tag or recv.source not in (ANY, peer):
            return f"recv {number} took message {message} of peer {peer}, which is not its"
        for earlier in range(number):  # posted before it, for the same message: has its own, and an older one
            other = recvs[earlier]
            if other.tag == tag and other.source in (ANY, peer):
                if earlier not in took:
                    return f"recv {number} took what the earlier recv {earlier} waits for"
                if took[earlier][0] == peer and took[earlier][1] > message:
                    return f"recv {number} took an older message than recv {earlier}"
    if len(set(took.values())) < len(took):
        return "a message was taken twice"
    for number, recv in enumerate(recvs):  # and none waits beside a message for it
        for wire in wires:
            for message, tag in enumerate(wire.tags):
                fits = tag == recv.tag and recv.source in (ANY, wire.peer)
                if number not in took and fits and (wire.peer, message) not in took.values():
                    return f"recv {number} waits, and message {message} of peer {wire.peer} was not taken"
    return ""


def times(gaps: Sequence[int]) -> list[int]:
    """After how many looks each byte comes, from the looks between them."""
    return list(itertools.accumulate(gaps, initial=1))[1:]


def one_peer() -> Iterator[tuple[list[Wire], list[Posted], int]]:
    """Three messages with two tags, three recvs, every gap of 0 to 2 looks, every number of recvs that are late."""
    for tags in itertools.product((1, 2), repeat=3):
        for asked in set(itertools.permutations(tags)):
            for gaps in itertools.product((0, 1, 2), repeat=6):
                for late in range(4):
                    yield [Wire(1, tags, times(gaps))], [Posted(1, tag) for tag in asked], late


def two_peers(seed: int) -> Iterator[tuple[list[Wire], list[Posted], int]]:
    """Two peers with two messages each, recvs from one of them or from any."""
    rng = random.Random(seed)
    while True:
        wires = [
            Wire(peer, [rng.choice((1, 2)) for _ in range(2)], times([rng.randrange(4) for _ in range(4)]))
            for peer in (1, 2)
        ]
        recvs = [Posted(rng.choice((1, 2, ANY)), rng.choice((1, 2))) for _ in range(rng.randrange(1, 6))]
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
    assert walk(itertools.islice(one_peer(), 0, None, 23)) > 2500


def test_two_peers_sampled() -> None:
    assert walk(itertools.islice(two_peers(7), 2000)) == 2000


@pytest.mark.more
def test_all_of_one_peer() -> None:
    assert walk(one_peer()) == 58_320


@pytest.mark.more
def test_more_of_two_peers() -> None:
    assert walk(itertools.islice(two_peers(8), 60_000)) == 60_000


def test_many_set_aside() -> None:
    """What is set aside is found by its tag at once, however much there is."""

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
