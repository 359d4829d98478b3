"""The plan of a fetch: what comes from each rank of the publisher, and what readers of one host hand on to each other.

Readers that fetch together are the last ranks of the plan, behind the publisher's.  So `deal` has its law for them,
too: an element crosses to a host once, by one of its readers, and the others have it from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.collectives.layouts.arrays import Array, new
from hocket.collectives.layouts.deal import FETCH, HAND_ON, Move, deal
from hocket.collectives.layouts.given import ONE, shown, wishes
from hocket.collectives.layouts.layout import Layout
from hocket.collectives.layouts.moving import MOST, Arrays, Damaged, Kinds, Parcel, messages
from hocket.collectives.layouts.redistribute import dtype_named, kinds_of, mover
from hocket.collectives.publishing.words import BLOCK, PACKS, STRAIGHT, heard_layouts, told_box
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator


class Table(NamedTuple):
    """The words of a publisher's rank 0 about what is there, but for the version."""

    digest: str
    names: list[str]
    listed: bool
    dtypes: list[str]
    layouts: list[Layout]
    addresses: list[str]
    hosts: list[str]
    """The host of each rank, as `here` says it."""

    @classmethod
    def heard(cls, told: Mapping[str, Any]) -> Table:
        """A table from JSON.  Raises ArgumentError, TransportError."""
        table = told["table"]
        made = cls(told["digest"], *(table[field] for field in cls._fields[1:]))
        return made._replace(layouts=heard_layouts(table["layouts"]))


class FetchWish(NamedTuple):
    """The arguments of a reader."""

    layout: Any
    rank: int
    into: Any
    dtype: Any
    codec: Any
    check: bool

    @property
    def digest(self) -> str:
        """A text that readers who fetch together have alike."""
        layouts = self.layout if isinstance(self.layout, Mapping) else {ONE: self.layout}
        told = [[name, each.digest] for name, each in sorted(layouts.items())]
        return hashlib.blake2b(repr([told, self.dtype, self.codec, self.check]).encode(), digest_size=16).hexdigest()


class FetchPlan:
    """One reader's part of it."""

    def __init__(
        self, table: Table, wanted: FetchWish, comm: Communicator | None, places: Sequence[str], address: str
    ) -> None:
        """`comm`: of the readers that fetch together; None: one alone.  `places`: each one's host, as `here` says it.

        Raises ArgumentError, on all of them alike but for `into`.
        """
        self.table, self.comm, self.check = table, comm, wanted.check
        given = wanted.layout
        self.names = sorted(given) if isinstance(given, Mapping) else table.names
        if unknown := [name for name in self.names if name not in table.names]:
            raise ArgumentError(f"fetch: {address} publishes no {shown(unknown)}; it has {shown(table.names)}")
        self._numbers = [table.names.index(name) for name in self.names]
        """The publisher's numbers of these."""
        haves = [dtype_named(table.dtypes[number]) for number in self._numbers]
        self.kinds = kinds_of(self.names, haves, wishes(self.names, wanted.dtype, wanted.codec))
        size, readers = len(table.addresses), range(1) if comm is None else range(comm.size)
        me = 0 if comm is None else comm.rank
        rows, shapes = [], []
        for name, number, kind in zip(self.names, self._numbers, self.kinds, strict=True):
            wants = given[name] if isinstance(given, Mapping) else given
            if comm is not None and any(wants.ranges[comm.size :]):
                raise ArgumentError(f"fetch: the layout of {name!r} has boxes on {wants.size} ranks; {comm.size} read")
            own = [wants.of(wanted.rank if comm is None else reader) for reader in readers]
            target = Layout.of_ranges(wants.shape, [[]] * size + own)
            rows.append((name, table.layouts[number], target, kind.want.itemsize))
            shapes.append(target.shapes(size + me))
        moves = deal(rows, _hosts(table.hosts, [[0]] if comm is None else comm.membership.hosts, places))
        self._fetched = sorted(
            (move for move in moves if move.when == FETCH and move.target.rank == size + me),
            key=lambda move: move.source.rank,
        )
        self._handed = [_moved(move, size) for move in moves if move.when == HAND_ON]
        self.sources = sorted({move.source.rank for move in self._fetched})
        """The publisher's ranks that this reader needs."""
        self.arrays = _arrays(wanted.into, self.names, shapes, self.kinds)
        self.words = Arrays(self.kinds, [], [[each.words for each in own] for own in self.arrays], MOST)
        self.messages: dict[int, list[Parcel]] = {}
        self._hand_on: Callable[[float | None], list[Damaged]] | None = None

    def cut(self, far: Mapping[int, bool]) -> None:
        """Cut it into messages.  `far`: for each source, is it on another host?"""
        self.messages = {
            rank: list(messages(list(some), self.kinds, MOST, far[rank]))
            for rank, some in groupby(self._fetched, key=lambda move: move.source.rank)
        }

    def hand_on(self, timeout: float | None) -> list[Damaged]:
        """The part that readers of a host have from each other.  Collective."""
        if self.comm is None:
            for move in self._handed:
                self.words.copy(move)
            return []
        if self._hand_on is None:
            self._hand_on = mover(self.comm, self._handed, self.words, ([], self.arrays), self.check, timeout).run
        return self._hand_on(timeout)

    def told_kinds(self) -> list[Any]:
        """The dtypes that arrays are to come in, as JSON."""
        rows = zip(self._numbers, self.kinds, strict=True)
        return [[number, kind.want.name] for number, kind in rows if kind.want != kind.have]

    def told(self, message: Parcel) -> list[Any]:
        """A message as JSON: how it travels, and of each part array, box of the publisher's, and part."""
        way = STRAIGHT if message.straight else BLOCK if message.form is None else PACKS
        return [way, [[self._numbers[m.array], m.source.place, told_box(m.box)] for m in message.moves]]

    def result(self) -> Any:
        """The arrays, as they were published."""
        rows = zip(self.names, self.arrays, strict=True)
        lists = {name: [each.array for each in own] for name, own in rows}
        return lists[ONE] if self.table.listed else lists


def _hosts(publisher: Sequence[str], readers: Sequence[Sequence[int]], places: Sequence[str]) -> list[list[int]]:
    """The ranks of the plan by host: the publisher's, and behind them the readers'."""
    size = len(publisher)
    found = [[size + reader for reader in host] for host in readers]
    apart: dict[str, list[int]] = {}
    for rank, place in enumerate(publisher):
        near = next((i for i, host in enumerate(readers) if place in {places[reader] for reader in host}), None)
        (apart.setdefault(place, []) if near is None else found[near]).append(rank)
    return [*apart.values(), *found]


def _moved(move: Move, by: int) -> Move:
    """The same among readers alone."""
    source, target = (end._replace(rank=end.rank - by) for end in (move.source, move.target))
    return move._replace(source=source, target=target)


def _arrays(
    into: Any, names: Sequence[str], shapes: Sequence[Sequence[tuple[int, ...]]], kinds: Sequence[Kinds]
) -> list[list[Array]]:
    """Where the parts go: new arrays, or those of `into`."""
    if into is None:
        rows = zip(shapes, kinds, strict=True)
        made = [[new(shape, kind.want, None, False) for shape in own] for own, kind in rows]
        return [[Array(each, "an array", True) for each in own] for own in made]
    into = into if isinstance(into, Mapping) else {ONE: into}
    found = []
    for name, own, kind in zip(names, shapes, kinds, strict=True):
        given = [Array(each, f"into[{name!r}]", True) for each in into.get(name, ())]
        if [(each.shape, each.dtype) for each in given] != [(shape, kind.want) for shape in own]:
            has = ", ".join(f"{kind.want}{list(shape)}" for shape in own) or "none"
            raise ArgumentError(f"fetch: into[{name!r}] must be a list of an array for each box: {has}")
        found.append(given)
    return found
