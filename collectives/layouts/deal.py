"""The plan: from whom each rank gets each part.  A pure function of layouts and hosts, so every rank finds the same.

Every wanted element comes from exactly one holder.  A rank takes what it has itself, then what ranks of its host have,
and only then what others have.  Between hosts an element crosses once: one rank of the host fetches it (`FETCH`), and
those of the host that want it, too, have it from there (`HAND_ON`).  Where several hold the same, each sends a part.
tests/collectives/layouts/test_deal.py has the law, for random layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hocket.collectives.layouts.boxes import Box, count, cover, cut, words
from hocket.collectives.layouts.layout import Layout
from hocket.errors import ArgumentError

FETCH, HAND_ON = 0, 1
"""When: first what is held, then inside hosts what has come from others."""
SPLIT = 1 << 16
"""Bytes of a part, at least, where several hold a box, or several want it."""


class Holding(NamedTuple):
    """An array of a rank: `place` says which of its boxes."""

    rank: int
    place: int
    box: Box


class Move(NamedTuple):
    """The elements `box` of an array go from one rank's box to another's, or to the same rank's."""

    array: int
    when: int
    box: Box
    source: Holding
    """A box of the source layout, or of the target's if it is handed on."""
    target: Holding


class Unheld(Exception):
    """Nobody holds what some ranks want."""

    def __init__(self, box: Box, ranks: Sequence[int]) -> None:
        super().__init__(f"nobody holds {words(box)}, which rank{'s' * (len(ranks) > 1)} {str(ranks)[1:-1]} want")


@dataclass
class Load:
    """Bytes that each rank has been given to send, so that holders take turns."""

    sent: dict[int, int] = field(default_factory=dict)

    def least(self, holders: Sequence[Holding], nbytes: int) -> Holding:
        """The one of these that has least to send; it gets these bytes, too."""
        holder = min(holders, key=lambda held: (self.sent.get(held.rank, 0), held.rank))
        self.sent[holder.rank] = self.sent.get(holder.rank, 0) + nbytes
        return holder


def deal(pairs: Sequence[tuple[str, Layout, Layout, int]], hosts: Sequence[Sequence[int]]) -> list[Move]:
    """The moves of several arrays: of each its name, source, target and the bytes of an element.

    `hosts`: the ranks of each host.  Raises ArgumentError if an element is wanted that nobody holds.
    """
    load = Load()
    moves: list[Move] = []
    for number, (name, source, target, itemsize) in enumerate(pairs):
        if source.shape != target.shape:
            raise ArgumentError(f"array {name!r} has shape {source.shape} in source, and {target.shape} in target")
        try:
            moves += _Dealt(number, source, target, itemsize, hosts, load).moves()
        except Unheld as why:
            raise ArgumentError(f"array {name!r}: {why}") from None
    return moves


class _Dealt:
    """One array."""

    def __init__(
        self, number: int, source: Layout, target: Layout, itemsize: int, hosts: Sequence[Sequence[int]], load: Load
    ) -> None:
        self.number, self.source, self.target, self.itemsize = number, source, target, itemsize
        self.hosts, self.load = hosts, load

    def moves(self) -> Iterator[Move]:
        for host in self.hosts:
            yield from self._on(host)

    def _on(self, host: Sequence[int]) -> Iterator[Move]:
        """The moves to the ranks of one host."""
        near = _holders(self.source, host)
        far = _holders(self.source, [rank for other in self.hosts if other is not host for rank in other])
        fetched: list[tuple[Box, Holding]] = []
        """Parts that came from other hosts, and the box of the target in which they are now."""
        for box, wanting in _holders(self.target, host).items():
            lacking = [box]
            for held in near:
                _, lacking = cover(lacking, held)
            for want in wanting:
                yield from self._within(want, near)
            if not lacking:
                continue
            fetches, lacking = _taken(lacking, fetched)
            for part, by in fetches:
                yield from (self._move(HAND_ON, part, by, want) for want in wanting)
            for held, holders in far.items():
                met, lacking = cover(lacking, held)
                for whole in met:
                    for part, want in self._shared(whole, wanting, len(holders)):
                        holder = self.load.least(holders, count(part) * self.itemsize)
                        yield self._move(FETCH, part, holder, want)
                        yield from (self._move(HAND_ON, part, want, other) for other in wanting if other is not want)
                        fetched.append((part, want))
            if lacking:
                raise Unheld(lacking[0], sorted({want.rank for want in wanting}))

    def _within(self, want: Holding, near: dict[Box, list[Holding]]) -> Iterator[Move]:
        """The moves to one rank from itself, then from its host."""
        lacking = [want.box]
        own = {box: [each for each in held if each.rank == want.rank] for box, held in near.items()}
        for candidates in (own, near):
            for box, holders in candidates.items():
                if not holders or not lacking:
                    continue
                met, lacking = cover(lacking, box)
                for whole in met:
                    for part in [whole] if candidates is own else self._parts(whole, len(holders)):
                        holder = holders[0] if candidates is own else self.load.least(holders, self._nbytes(part))
                        yield self._move(FETCH, part, holder, want)

    def _shared(self, whole: Box, wanting: Sequence[Holding], holders: int) -> Iterator[tuple[Box, Holding]]:
        """Parts of what comes from other hosts, and who fetches each."""
        parts = self._parts(whole, max(len(wanting), holders))
        return ((part, wanting[i % len(wanting)]) for i, part in enumerate(parts))

    def _parts(self, whole: Box, most: int) -> list[Box]:
        return cut(whole, max(1, min(most, self._nbytes(whole) // SPLIT)))

    def _nbytes(self, box: Box) -> int:
        return count(box) * self.itemsize

    def _move(self, when: int, box: Box, source: Holding, target: Holding) -> Move:
        return Move(self.number, when, box, source, target)


def _holders(layout: Layout, ranks: Sequence[int]) -> dict[Box, list[Holding]]:
    """The boxes of these ranks that are not empty, each with all that hold it."""
    found: dict[Box, list[Holding]] = {}
    for rank in ranks:
        for place, box in enumerate(layout.of(rank)):
            if all(box):
                found.setdefault(box, []).append(Holding(rank, place, box))
    return found


def _taken(lacking: list[Box], fetched: Sequence[tuple[Box, Holding]]) -> tuple[list[tuple[Box, Holding]], list[Box]]:
    """The parts of `lacking` that were fetched already, with who did, and the others."""
    found: list[tuple[Box, Holding]] = []
    for box, held in fetched:
        met, lacking = cover(lacking, box)
        found += [(part, held) for part in met]
    return found, lacking
