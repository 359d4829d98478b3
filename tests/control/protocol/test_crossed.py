"""Collectives and messages that follow each other on every rank: do ranks that wait for each other hear so?"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from hocket.control.protocol.faults import crossed
from hocket.control.protocol.messages import MESSAGE, Stuck

SIZE = 4
Call = list[tuple[int, int]] | None
"""A permutation's pairs (from, to); None: a collective."""


@dataclass
class Rank:
    """A rank of a program, by what it has begun."""

    program: list[Call]
    at: int = -1
    collectives: int = 0
    sent: list[int] = field(default_factory=lambda: [0] * SIZE)
    taken: list[int] = field(default_factory=lambda: [0] * SIZE)


class Job:
    """Ranks whose messages are kept until they are taken."""

    def __init__(self, programs: list[list[Call]]) -> None:
        self.ranks = [Rank(program) for program in programs]
        self.waiting: dict[int, Stuck] = {}

    def over(self, r: int) -> bool:
        rank = self.ranks[r]
        return rank.at >= len(rank.program)

    def blocked(self, r: int) -> bool:
        rank = self.ranks[r]
        if rank.at < 0 or self.over(r):
            return False
        if rank.program[rank.at] is None:
            return any(other.collectives < rank.collectives for other in self.ranks)
        return any(self.ranks[q].sent[r] < rank.taken[q] for q in range(SIZE))

    def go_on(self, r: int) -> None:
        """Begin the next call."""
        rank = self.ranks[r]
        rank.at += 1
        if self.over(r):
            return
        call = rank.program[rank.at]
        if call is None:
            rank.collectives += 1
        for source, to in call or ():
            rank.sent[to] += source == r
            rank.taken[source] += to == r

    def report(self, r: int) -> None:
        rank = self.ranks[r]
        message = rank.program[rank.at] is not None
        number, kind = rank.collectives + message, MESSAGE if message else "ff"
        self.waiting[r] = Stuck("c", number, [*range(SIZE)], kind, {}, [*rank.sent], [*rank.taken])

    def run(self, draw: random.Random) -> bool:
        """At random, with reports of ranks that wait, until nothing moves.  Was anything crossed meanwhile?"""
        found = False
        while able := [r for r in range(SIZE) if not self.blocked(r) and not self.over(r)]:
            self.go_on(draw.choice(able))
            for r in range(SIZE):
                if self.blocked(r) and draw.random() < 0.3:
                    self.report(r)
                    found |= crossed(self.waiting)
        return found


def program(draw: random.Random) -> list[Call]:
    def call() -> Call:
        to = draw.sample(range(SIZE), SIZE)
        return draw.choice([None, [(a, b) for a, b in enumerate(to) if a != b and draw.random() < 0.7]])

    return [call() for _ in range(6)]


@pytest.mark.parametrize("seed", range(5))
def test_one_program_on_all_ranks_is_never_crossed(seed: int) -> None:
    """Whatever the order in which they run, and however old the reports are."""
    draw = random.Random(seed)
    for _ in range(60):
        job = Job([program(draw)] * SIZE)
        assert not job.run(draw) and all(map(job.over, range(SIZE)))


@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_wait_for_each_other_for_ever_are_crossed(seed: int) -> None:
    draw, stuck = random.Random(seed), 0
    for _ in range(60):
        usual, other = program(draw), program(draw)
        job = Job([other, *[usual] * (SIZE - 1)])
        job.run(draw)
        if all(map(job.blocked, range(SIZE))):
            stuck += 1
            for r in range(SIZE):
                job.report(r)
            assert crossed(job.waiting)
    assert stuck > 5


def test_what_is_sent_before_a_collective_is_taken_before_it() -> None:
    """A message that needs no answer, and a rank that has gone past it."""
    sends = Stuck("c", 3, [0, 1], MESSAGE, {}, [0, 2], [0, 1])
    sums = Stuck("c", 3, [0, 1], "ff", {}, [1, 0], [1, 0])
    assert crossed({0: sends, 1: sums})
    assert not crossed({0: sends, 1: sums._replace(taken=[2, 0])})
    assert not crossed({0: sends._replace(sent=[], taken=[]), 1: sums})
