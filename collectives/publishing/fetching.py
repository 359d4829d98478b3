"""`fetch`: a process gets the parts that it wants of arrays that another job has published, all of one version."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.arguments import kind, whole
from hocket.collectives.elastic import pairs
from hocket.collectives.layouts.deal import FETCH, HAND_ON, Move, deal
from hocket.collectives.layouts.given import ONE, shown
from hocket.collectives.layouts.held import Array, new
from hocket.collectives.layouts.layout import Layout
from hocket.collectives.layouts.moving import MOST, Arrays, Damaged, Kinds, Message, Way, drain, messages
from hocket.collectives.layouts.redistribute import dtype_named
from hocket.collectives.publishing.words import BYE, hear, heard_layouts, tell, told_box
from hocket.collectives.start import default
from hocket.errors import ArgumentError, Error, MismatchError, PeerLostError, TimeoutError, TransportError
from hocket.kernels.dtypes import DType

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

REACH = 2.0
"""Seconds after which a rank of the publisher that does not answer a connection is asked for again."""
PATIENCE = 30.0
"""Seconds in which a fetch must have begun, where the caller does not say."""


class Table(NamedTuple):
    """The words of a publisher's rank 0 about what is there."""

    version: int
    names: list[str]
    listed: bool
    dtypes: list[str]
    layouts: list[Layout]
    addresses: list[str]


class Plan(NamedTuple):
    """The messages that this process gets from each rank of the publisher, and where their parts go."""

    of: tuple[Any, ...]
    """The table that it was made for, without the version."""
    names: list[str]
    numbers: list[int]
    """The publisher's numbers of these."""
    arrays: list[list[Array]]
    words: Arrays
    messages: dict[int, list[Message]]
    own: list[Move]
    """The moves from one of this process's boxes to another, which wants the same."""

    def told(self, message: Message) -> list[Any]:
        """A message as JSON: whether it goes straight, and of each part array, box of the publisher's, and part."""
        parts = [[self.numbers[m.array], m.source.place, told_box(m.box)] for m in message.moves]
        return [message.straight, parts]


class Reader:
    """One process that reads what a job has published, again and again: `fetch` returns the newest version.

    `hocket.fetch` is a reader that reads once.  Connections, plan and arrays are kept from one `fetch` to the next,
    which writes into the same arrays.  `version` is the number of what was fetched last.
    """

    def __init__(
        self, address: str, layout: Any, *, rank: int | None = None, into: Any = None, check: bool = False,
        secret: str | bytes | None = None, iface: str | None = None, encrypt: bool | None = None,
        transport: str | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(layout, (Layout, Mapping)):
            raise ArgumentError(f"layout must be a Layout, or map names to Layouts, got {kind(layout)}")
        self.rank = _own_rank() if rank is None else whole(rank, "rank")
        self.version: int | None = None
        self._address, self._layout, self._into, self._check = address, layout, into, bool(check)
        self._how: dict[str, Any] = {"secret": secret, "iface": iface, "encrypt": encrypt}
        self._how["transport"] = transport
        self._pairs: dict[int, Communicator] = {}
        self._plan: Plan | None = None

    def fetch(self, timeout: float | None = None) -> Any:
        """The newest version: a dict of lists of arrays, or a list, as it was published.

        Raises PeerLostError (a rank of the publisher is gone), TimeoutError (it did not begin within `timeout` seconds;
        30), ArgumentError (names, shapes or elements that nobody has published).
        """
        deadline = time.monotonic() + (PATIENCE if timeout is None else timeout)
        while True:
            try:
                made = self._fetched(deadline)
            except (PeerLostError, TransportError) as why:
                self.close()
                text = f"fetch: the job that publishes at {self._address} has lost a rank: {why}"
                raise PeerLostError(text, []) from why
            if made is not None:
                return made

    def close(self) -> None:
        """Leave the publisher."""
        for pair in self._pairs.values():
            with contextlib.suppress(Error):
                tell(pair, BYE, timeout=0.1)
            pair.close(timeout=0.1, log_as="a publisher")
        self._pairs.clear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _fetched(self, deadline: float) -> Any:
        """The result; None if the version that was begun is offered no more."""
        first = self._pair(0, self._address, deadline)
        table = self._asked(first, deadline)
        plan = self._planned(table)
        sources = {rank: self._pair(rank, table.addresses[rank], deadline) for rank in plan.messages}
        for pair in sources.values():
            tell(pair, {"what": "hold", "version": table.version})
        held = [hear(pair, self._left(deadline)) for pair in sources.values()]
        if not all(held):
            return None
        damaged: list[Damaged] = []
        ways = []
        for rank, pair in sources.items():
            mine = plan.messages[rank]
            tell(pair, {"what": "send", "check": self._check, "messages": [plan.told(each) for each in mine]})
            ways.append(Way(pair, 0, mine, True, plan.words, None, damaged if self._check else None))
        drain(ways)
        for move in plan.own:
            plan.words.copy(move)
        if damaged:
            name = table.names[damaged[0].array]
            raise MismatchError(f"fetch: other bits of array {name!r} arrived than were sent", {})
        self.version = table.version
        rows = zip(plan.names, plan.arrays, strict=True)
        lists = {name: [each.array for each in own] for name, own in rows}
        return lists[ONE] if table.listed else lists

    def _asked(self, first: Communicator, deadline: float) -> Table:
        tell(first, {"what": "table"})
        told = hear(first, self._left(deadline))
        if told["lost"]:
            raise PeerLostError(f"its rank {told['lost'][0]} is gone", [])
        layouts = heard_layouts(told["layouts"])
        return Table(told["version"], told["names"], told["listed"], told["dtypes"], layouts, told["addresses"])

    def _planned(self, table: Table) -> Plan:
        of = (table.names, table.dtypes, table.layouts, table.addresses)
        if self._plan is not None and self._plan.of == of:
            return self._plan
        names = sorted(self._layout) if isinstance(self._layout, Mapping) else table.names
        if unknown := [name for name in names if name not in table.names]:
            raise ArgumentError(f"fetch: {self._address} publishes no {shown(unknown)}; it has {shown(table.names)}")
        size = len(table.addresses)
        rows, numbers = [], [table.names.index(name) for name in names]
        for name, number in zip(names, numbers, strict=True):
            wanted = self._layout[name] if isinstance(self._layout, Mapping) else self._layout
            mine = Layout.of_ranges(wanted.shape, [[]] * size + [wanted.of(self.rank)])
            rows.append((name, table.layouts[number], mine, dtype_named(table.dtypes[number]).itemsize))
        moves = deal(rows, [[*range(size)], [size]])
        dtypes = [dtype_named(table.dtypes[number]) for number in numbers]
        kinds = [Kinds(dtype, dtype) for dtype in dtypes]
        arrays = self._arrays(names, [row[2].shapes(size) for row in rows], dtypes)
        words = Arrays(kinds, [], [[each.words for each in own] for own in arrays], MOST)
        by_rank = sorted((m for m in moves if m.when == FETCH), key=lambda move: move.source.rank)
        found = {
            rank: list(messages(list(some), kinds, MOST))
            for rank, some in groupby(by_rank, key=lambda move: move.source.rank)
        }
        self._plan = Plan(of, names, numbers, arrays, words, found, [m for m in moves if m.when == HAND_ON])
        return self._plan

    def _arrays(
        self, names: Sequence[str], shapes: Sequence[Sequence[tuple[int, ...]]], dtypes: Sequence[DType]
    ) -> list[list[Array]]:
        """Where the parts go: new arrays, or those of `into`."""
        if self._into is None:
            rows = zip(shapes, dtypes, strict=True)
            made = [[new(shape, dtype, None, False) for shape in own] for own, dtype in rows]
            return [[Array(each, "an array", True) for each in own] for own in made]
        into = self._into if isinstance(self._into, Mapping) else {ONE: self._into}
        found = []
        for name, own, dtype in zip(names, shapes, dtypes, strict=True):
            given = [Array(each, f"into[{name!r}]", True) for each in into.get(name, ())]
            if [(each.shape, each.dtype) for each in given] != [(shape, dtype) for shape in own]:
                has = ", ".join(f"{dtype}{list(shape)}" for shape in own) or "none"
                raise ArgumentError(f"fetch: into[{name!r}] must be a list of an array for each box: {has}")
            found.append(given)
        return found

    def _pair(self, rank: int, address: str, deadline: float) -> Communicator:
        """The connection to a rank of the publisher."""
        pair = self._pairs.get(rank)
        while pair is None:
            left = self._left(deadline)
            try:
                pair = pairs.connect(address, timeout=min(left, REACH), **self._how)
            except TimeoutError:
                if rank:  # its rank 0 knows whether it is lost
                    self._asked(self._pairs[0], deadline)
        self._pairs[rank] = pair
        return pair

    def _left(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"fetch: the job that publishes at {self._address} has not answered in time", [])
        return left


def _own_rank() -> int:
    """This process's rank in its own job; 0 if it has none."""
    try:
        return default.communicator().rank
    except ArgumentError:
        return 0


def fetch(
    address: str, layout: Any, *, rank: int | None = None, into: Any = None, check: bool = False,
    timeout: float | None = None, secret: str | bytes | None = None, iface: str | None = None,
    encrypt: bool | None = None, transport: str | None = None,
) -> Any:  # fmt: skip
    """The newest version of what another job has published (`hocket.publish`): the boxes that this process wants.

    `layout`: a `Layout`, or names and Layouts, of which this process is rank `rank` (of the default communicator's
    ranks, if there is one; else 0).  Names that are left out do not travel.  Returns a dict of lists of arrays, new or
    those of `into`, or a list where a list was published.  All is of one version.  Each process fetches by itself: no
    rank of the reading job waits for another.  `Reader` keeps the connections for the next time.

    `check`: compare a digest of each message at its end (MismatchError).  `secret` and the rest: as in
    `hocket.connect`.  Errors as in `Reader.fetch`.

    >>> import hocket, numpy as np
    >>> world = hocket.local_world(1)
    >>> whole = hocket.Layout.replicated((3,), 1)
    >>> published = world.run(lambda comm: hocket.publish(comm, {"w": [np.arange(3)]}, whole))[0]
    >>> hocket.fetch(published.address, {"w": whole}, rank=0)["w"][0].tolist()
    [0, 1, 2]
    >>> published.close()
    """
    how: dict[str, Any] = {"secret": secret, "iface": iface, "encrypt": encrypt, "transport": transport}
    with Reader(address, layout, rank=rank, into=into, check=check, **how) as reader:
        return reader.fetch(timeout)
