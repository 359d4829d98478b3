"""`Client`: what a worker calls."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hocket.arguments import kind, whole
from hocket.errors import ArgumentError
from hocket.extending import on_host, place
from hocket.training.server.holder import Holder
from hocket.training.server.member import ViewMember
from hocket.training.server.optimizers import Array
from hocket.training.server.serve import Server
from hocket.training.server.shards.packing import ALL
from hocket.training.server.shards.store import Change, What
from hocket.training.server.tables import LONGEST, Places, Range, Rows, Table, TableSlice, as_keys, finite, shares
from hocket.training.server.views import MemberInfo
from hocket.training.server.wire.messages import drawn
from hocket.training.server.worker.encoding import Encoder, as_values, wire_codec
from hocket.training.server.worker.handles import Handle, OpenPart
from hocket.training.server.worker.heads import Heads
from hocket.training.server.worker.receiving import Receiver
from hocket.training.server.worker.ways import Way

WINDOW = 8 << 20
LONG = 100_000
"""Nanoseconds of a wait that a trace shows."""


def rotated(parts: Sequence[TableSlice], by: int) -> list[TableSlice]:
    """All of them, beginning with number `by` modulo their count."""
    by %= max(1, len(parts))
    return [*parts[by:], *parts[:by]]


PartPush = tuple[Way, Change, OpenPart]
"""A slice, or rows, that is pushed to one server."""


class Client:
    """A worker.  All ranks that do not `serve` make one, with the same tables; or `Client(server)` on one that does.

    `window`: bytes of pushes on their way, at most.  `codec`: of pushes ("int8", "fp8", "int4", "sign"), whose loss is
    added to the next push of the same table; `answers`: of pulls.  `timeout`: seconds that it waits for a new head of
    a shard that is lost.  The rest: as in `hocket.connect`.

    `clock`: how often it has ticked.  `lost`: changes that servers had acknowledged and lost, without copies;
    a push is one for each slice, or each server that has some of its rows.
    """

    def __init__(
        self, comm: Any, tables: Mapping[str, Table] | None = None, *, codec: Any = None, answers: Any = None,
        window: int = WINDOW, timeout: float = 60.0, **how: Any,
    ) -> None:  # fmt: skip
        holder = comm.holder if isinstance(comm, Server) else None
        named = holder.named if holder is not None else drawn()
        self.uid = named.uid
        given: Any = holder.tables if holder is not None else tables
        self.layout = Places(given, 1)
        member = holder.member if holder is not None else None
        self.who = f"rank {comm.rank if member is None else member.comm.rank}: Client"
        self._encoder, self._answers = Encoder(wire_codec(codec)), wire_codec(answers)
        self._window, self.clock = whole(window, "window"), 0
        self.gathering: weakref.WeakSet[Any] = weakref.WeakSet()
        """Objects that push at the end of a clock: `flush()` of each is called then."""
        elastic = comm.door is not None if member is None else member.elastic
        like = comm if member is None else member.comm
        self._heads = Heads(self.who, named, elastic, timeout, {"like": like, **how})
        self._receiver = Receiver(self._heads)
        self._holder, self._own = holder, self._meet(comm, holder)
        self._member = holder.member if self._own is None else self._own  # type: ignore[union-attr]
        self.ways: list[Way] = self._heads.ways
        """To each shard."""
        self.layout = Places(given, len(self.ways))
        rank = comm.rank if member is None else member.comm.rank
        self._parts = [rotated(parts, rank + 1) for parts in self.layout.parts]
        """Each table's slices: every worker begins with another one, so that they do not all wait for one server."""
        self._join()

    def _meet(self, comm: Any, holder: Holder | None) -> ViewMember | None:
        """Take part in the agreement on views; a rank that serves, too, does so already."""
        if holder is None:
            return ViewMember(comm, self._says, self._heads.install, self.who)
        if not holder.works or holder.view is None:
            raise ArgumentError(
                f"{self.who}: a rank that serves and has a Client needs serve(..., works=True), and in an elastic job "
                "has one Client, as the others wait no more for a rank whose Client has ended"
            )
        holder.installed.append(self._heads.install)
        self._heads.install(holder.view)
        return None

    def _says(self) -> MemberInfo:
        view = self._heads.view
        shards, settings = (view.shards, [*view.settings]) if view is not None else (0, [])
        return MemberInfo(self.uid, True, "", {}, shards, self.layout.said(), settings, view is not None)

    def _join(self) -> None:
        """Begin at the clock of the slowest."""
        for way in self.ways:
            self._receiver.until(lambda way=way: way.outbox.ready, lambda way=way: way)  # type: ignore[misc]
        self.clock = max(way.outbox.slowest for way in self.ways)
        for way in self.ways:
            way.tick(self.clock)

    # --- what users call

    def push(self, name: str, values: Any, rows: Any = None, *, async_op: bool = False) -> Any:
        """Give a table's optimizer these values: an array of its shape, or, with `rows`, one row for each key.

        Returns when all servers have acknowledged it; with async_op=True at once, a `Handle`, and `values` must not
        change before that has ended.  Raises ArgumentError (a shape, a key, a number that is not finite) and
        PeerLostError.
        """
        handle, parts = self.begin_push(name, values, rows)
        for part in parts:
            self.start_push(*part, self._window)
        return handle if async_op else self._waited(handle, f"push {name}")

    def pull(self, name: str, rows: Any = None, *, out: Any = None, async_op: bool = False) -> Any:
        """A table's values, or those of these rows, in a new array or in `out`.

        It sees what all workers have pushed up to the bound of the clock's rule, and all that this one has pushed.
        With async_op=True a `Handle`: they come while the caller computes.
        """
        handle = self._pull(name, rows, out, alone=async_op)
        return handle if async_op else self._waited(handle, f"pull {name}")

    def push_pull(self, name: str, values: Any, rows: Any = None, *, out: Any = None, async_op: bool = False) -> Any:
        """`push`, then `pull` of the same table or rows, without a wait in between."""
        pushed = self.push(name, values, rows, async_op=True)
        handle = self._pull(name, rows, out, alone=async_op)
        handle.first = pushed
        return handle if async_op else self._waited(handle, f"push_pull {name}")

    def tick(self) -> int:
        """This worker has ended a clock.  Its new one.  Does not wait."""
        self.flush()
        return self.end_clock()

    def end_clock(self) -> int:
        """`tick` without what has to be pushed before."""
        self.clock += 1
        for way in self.ways:
            self._room(way, 0)
            way.tick(self.clock)
        self._member.mark("client: clock", self.clock)
        if lost := self.lost:
            self._member.mark("client: lost", lost)
        return self.clock

    def state(self, name: str) -> dict[str, Array]:
        """All that servers have of a `Range`: its values, and what its optimizer keeps ("momentum", "steps").

        Arrays by name, of the table's shape; a number that each slice has for itself is the largest of them.
        """
        number, table = self.layout.number(name), self.range_of(name, "state() takes")
        found: dict[int, dict[str, Array]] = {}
        handle = Handle(found, self._receiver.wait)
        for part in self._parts[number]:
            entry = OpenPart(handle, (part.first, part.end), 0, found, None, ALL)
            self._ask(self.ways[part.shard], What(number, part.number, None, ALL), entry)
        self._waited(handle, f"state {name}")
        slices = [found[first] for first in sorted(found)]
        one = table.optimizer.slots  # type: ignore[union-attr]
        return {
            each: np.max([its[each] for its in slices], 0) if one.get(each)
            else np.concatenate([its[each] for its in slices]).reshape(table.shape)
            for each in slices[0]
        }  # fmt: skip

    def load(self, name: str, state: Mapping[str, Any]) -> None:
        """Put what `state` gave in the place of what servers have of a `Range`.  Returns when it is acknowledged.

        Raises ArgumentError: the table's optimizer keeps other arrays, or a shape or dtype differs.
        """
        number, table = self.layout.number(name), self.range_of(name, "load() takes")
        one = table.optimizer.slots  # type: ignore[union-attr]
        wanted = {"values": table.shape, **{each: (1,) if number_ else table.shape for each, number_ in one.items()}}
        arrays = {each: as_values(array, table.dtype) for each, array in state.items()}
        if {each: array.shape for each, array in arrays.items()} != wanted:
            got = ", ".join(f"{each}{list(array.shape)}" for each, array in arrays.items())
            keeps = ", ".join(f"{each}{list(shape)}" for each, shape in wanted.items())  # type: ignore[arg-type]
            raise ArgumentError(f"{self.who}: table {name!r} keeps {keeps} ({table.optimizer!r}), got {got}")
        handle = Handle(None, self._receiver.wait)
        for part in self._parts[number]:
            cut = slice(part.first, part.end)
            own = {each: array if one.get(each) else array.reshape(-1)[cut] for each, array in arrays.items()}
            nbytes = sum(each.nbytes for each in own.values())
            self.start_push(self.ways[part.shard], Change(number, part.number, None, own),
                             OpenPart(handle, (part.first, part.end), nbytes), self._window)  # fmt: skip
        self._waited(handle, f"load {name}")

    def table(self, name: str) -> Table:
        """The declaration of a table: `Range` or `Rows`."""
        return self._table(name)[1]

    def range_of(self, name: str, what: str) -> Range:
        """A table that has to be a `Range`.  Raises ArgumentError, which begins with `what`: "a layer must be"."""
        table = self.table(name)
        if not isinstance(table, Range):
            raise ArgumentError(f"{self.who}: {what} a Range; table {name!r} is {kind(table)}")
        return table

    @property
    def generation(self) -> int:
        """The generation of the view that it has: how often servers or workers were lost or came."""
        view = self._heads.view
        return -1 if view is None else view.generation

    @property
    def lost(self) -> int:
        return sum(way.outbox.lost for way in self.ways)

    def close(self) -> None:
        """Wait until all pushes are acknowledged, and leave."""
        if self._heads.over:
            return
        self.flush()
        for way in self.ways:
            self._room(way, 0)
            way.tick(None)
        for way in self.ways:
            self._receiver.until(lambda way=way: not way.outbox.pushes, lambda way=way: way)  # type: ignore[misc]
        self._leave(said=True)

    def flush(self, but: Any = None) -> None:
        """Let objects push what is to be pushed before the clock ends."""
        for each in list(self.gathering):
            if each is not but:
                each.flush()

    def _leave(self, said: bool) -> None:
        self._heads.close(said)
        if self._own is not None:
            self._own.close()
        elif self._holder is not None and self._member.elastic:
            self._holder.works = False  # the next view's shards wait for its clock no more

    def __enter__(self) -> Client:
        return self

    def __exit__(self, why: object, *_: object) -> None:
        if why is None:
            self.close()
        else:  # what is on its way may be lost
            self._leave(said=False)

    # --- out

    def begin_push(self, name: str, values: Any, rows: Any = None) -> tuple[Handle, list[PartPush]]:
        """A push whose parts have not begun: `start_push` begins each."""
        number, table = self._table(name)
        array, keys = self._checked(table, name, values, rows)
        handle, flat = Handle(None, self._receiver.wait), array.reshape(-1)
        if keys is not None:
            dealt = self._dealt(keys, table, name)
            changes = [Change(number, 0, keys[where], array[where].reshape(-1)) for _, where in dealt]
            ends = [(way, (0, 0)) for way, _ in dealt]
        else:
            parts = self._parts[number]
            changes = [Change(number, part.number, None, flat[part.first : part.end]) for part in parts]
            ends = [(self.ways[part.shard], (part.first, part.end)) for part in parts]
        return handle, [
            (way, change, OpenPart(handle, part, change.values.nbytes, None, None, 0, False, undo))
            for (change, undo), (way, part) in zip(self._encoder.encoded(changes), ends, strict=True)
        ]

    def start_push(self, way: Way, change: Change, entry: OpenPart, window: int) -> None:
        """One part, as soon as no more than `window` bytes are on its way with it."""
        self._room(way, entry.nbytes, window)
        entry.handle.begin(way)  # type: ignore[union-attr]
        way.push(change, entry)

    def _table(self, name: str) -> tuple[int, Table]:
        number = self.layout.number(name)
        return number, self.layout.tables[number]

    def _checked(self, table: Table, name: str, values: Any, rows: Any) -> tuple[Array, Array | None]:
        """Values and keys.  Raises ArgumentError before anything is sent: servers check their own parts alone."""
        what = f"{self.who}: table {name!r}"
        try:
            array, keys = as_values(values, table.dtype), self._keys(table, rows)
        except ArgumentError as error:
            raise ArgumentError(f"{what}: {error}") from None
        shape = (len(keys), table.width) if isinstance(table, Rows) and keys is not None else table.shape  # type: ignore[union-attr]
        if array.shape != shape:
            raise ArgumentError(f"{what} takes values of shape {shape}, got {array.shape}")
        if isinstance(table, Rows) and keys is not None and (why := table.unknown(keys)):
            raise ArgumentError(f"{what}: {why}")
        if not finite(array):
            raise ArgumentError(f"{what}: a value that was pushed is not finite in {table.dtype}")
        return array, keys

    @staticmethod
    def _keys(table: Table, rows: Any) -> Array | None:
        """Keys of rows; a `Range` has none."""
        if isinstance(table, Rows):
            return as_keys(rows)
        if rows is not None:
            raise ArgumentError("rows= is for tables of Rows, and this is a Range")
        return None

    def _dealt(self, keys: Array, table: Table, name: str) -> list[tuple[Way, Array]]:
        """The ways to the shards that have some of the keys, and the places of these."""
        shards = shares(keys) % len(self.ways)
        dealt = [(self.ways[shard], np.flatnonzero(shards == shard)) for shard in np.unique(shards).tolist()]
        most = max((where.size for _, where in dealt), default=0)
        if table.nbytes(most) > LONGEST:  # type: ignore[union-attr]
            raise ArgumentError(f"{self.who}: {most} rows of table {name!r} to one server are over 1 GiB: send fewer")
        return dealt

    def _pull(self, name: str, rows: Any, out: Any, alone: bool) -> Handle:
        handle, parts = self.begin_pull(name, rows, out, alone)
        for _, start in parts:
            start()
        return handle

    def begin_pull(
        self, name: str, rows: Any, out: Any, alone: bool, clock: int | None = None
    ) -> tuple[Handle, list[tuple[Way, Callable[[], None]]]]:
        """A pull whose parts have not begun, each with its way; of a `Range` they are in the order of `begin_push`.

        `alone`: nobody waits for it yet.  `clock`: the one that it is of, if not the present one.
        """
        number, table = self._table(name)
        keys = self._keys(table, rows)
        shape = (len(keys), table.width) if isinstance(table, Rows) else table.shape  # type: ignore[arg-type]
        result = np.empty(shape, table.dtype) if out is None else out
        if not on_host(result) or (result.shape, result.dtype) != (shape, table.dtype) or not result.flags.c_contiguous:
            where = "" if on_host(result) else f", in host memory: it is {place(result)}; or take Cached"
            raise ArgumentError(f"{self.who}: out must be a contiguous {table.dtype}{shape} for table {name!r}{where}")
        handle, flat = Handle(result, self._receiver.wait), result.reshape(-1)
        if keys is not None:
            asked = [
                (way, What(number, 0, keys[where], self._answers),
                 OpenPart(handle, (0, 0), 0, result, where, self._answers, alone))
                for way, where in self._dealt(keys, table, name)
            ]  # fmt: skip
        else:
            asked = [
                (self.ways[part.shard], What(number, part.number, None, self._answers),
                 OpenPart(handle, (part.first, part.end), 0, flat[part.first : part.end], None, self._answers, alone))
                for part in self._parts[number]
            ]  # fmt: skip
        return handle, [(each[0], partial(self._ask, *each, clock)) for each in asked]

    def _ask(self, way: Way, what: What, entry: OpenPart, clock: int | None = None) -> None:
        self._room(way, 0)
        entry.handle.begin(way)  # type: ignore[union-attr]
        way.pull(what, entry, clock)
        if entry.alone:
            self._receiver.drive(way.link)

    def _waited(self, handle: Handle, what: str) -> Any:
        """A handle's result; a trace shows the wait if it was long."""
        began = time.monotonic_ns()
        result = handle.wait()
        ended = time.monotonic_ns()
        if ended - began > LONG:
            self._member.span(what, began, ended)
        return result

    def _room(self, way: Way, nbytes: int, window: int | None = None) -> None:
        """Wait until so many bytes more may be on this way."""
        window = self._window if window is None else window
        if not way.has_room(nbytes, window):
            self._receiver.until(lambda: way.has_room(nbytes, window), lambda: way)
