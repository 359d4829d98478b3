"""The tables of one shard: what a push changes, and what a pull reads.  lines.py has its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np

from hocket.codecs import CODECS
from hocket.training.server.optimizers import Array, Optimizer, Sum
from hocket.training.server.shards.cold import default
from hocket.training.server.shards.lines import Lines
from hocket.training.server.shards.packing import ALL, packed
from hocket.training.server.shards.rounds import Round
from hocket.training.server.tables import Places, Range, Rows, TableSlice, finite, shares

Item = tuple[int, int]
"""A table and a slice of it; for rows, so many (lines.py)."""


class Change(NamedTuple):
    """A push to one slice, or to rows by `keys`.  `codec`: how the values are encoded on their way (frames.py).

    `values` may be all arrays of a slice by name, which take the place of what it has.
    """

    table: int
    part: int
    keys: Array | None
    values: Any
    codec: int = 0


class What(NamedTuple):
    """A pull of one slice, or of rows.  `codec`: how the answer travels (frames.py)."""

    table: int
    part: int
    keys: Array | None
    codec: int = 0


OURS = 3
"""References to an array that nobody else has: the slice's, the method's, and that of asking."""
GATHERED, ROUND = "gathered", "round"
"""Names in the dump of a slice with `mean`: the sum of what was pushed since its step, and its `Round`."""


class Slice:
    """A part of a `Range`, and what its optimizer keeps.  What a reader was lent is not changed: a push copies it.

    An array that is pushed to an optimizer that `overwrites` belongs to the slice from then on.
    """

    def __init__(self, table: Range, part: TableSlice) -> None:
        self.optimizer: Optimizer = table.optimizer  # type: ignore[assignment]
        self.chunks = (part.number,)
        """Numbers of its items."""
        self.values = table.began(part.first, part.end)
        self.slots = {name: np.zeros(1 if one else self.values.size, self.values.dtype)
                      for name, one in self.optimizer.slots.items()}  # fmt: skip
        self.lent = False
        self._spare: Array | None = None
        """The values before these, which a reader may still have."""
        self.round = Round() if table.mean else None
        self.gathered = np.zeros(self.values.size if table.mean else 0)
        """float64: the order in which workers come changes hardly a bit of the mean."""
        self.pushed = False
        self._saved: dict[str, Array] = {}

    def clear(self) -> None:
        """A slice is replaced as one."""

    def check(self, keys: Array | None, values: Array | None) -> str:
        if keys is not None:
            return "rows= is for tables of Rows, and this is a Range"
        if values is None:
            return ""
        if values.size != self.values.size or values.dtype != self.values.dtype:
            return f"{values.dtype}[{values.size}] was pushed to a slice of {self.values.dtype}[{self.values.size}]"
        return "" if finite(values) else "a value that was pushed is not finite"

    def apply(self, keys: Array | None, values: Array) -> None:
        if self.round is not None:
            np.add(self.gathered, values, out=self.gathered)
            self.pushed = True
            return
        if self.optimizer.overwrites:
            self.values, self.lent = values, False
            return
        if self.lent and type(self.optimizer) is Sum:  # a pass over memory less
            room = self._room()
            self._hold(np.add(self.values, values, out=room))
        else:
            self.optimizer.apply(self._own(), values, self.slots)

    def step(self, clock: int, workers: int) -> None:
        """The optimizer's, by the mean of so many workers, if some have pushed.  Back to a clock: without that."""
        assert self.round is not None
        if self.pushed and clock > self.round.done:
            self.gathered /= workers
            self.optimizer.apply(self._own(), self.gathered.astype(self.values.dtype), self.slots)
        if self.pushed:
            self.gathered[...], self.pushed = 0, False
        self.round.step(clock)

    def _own(self) -> Array:
        """The values, which nobody else reads."""
        if self.lent:
            room = self._room()
            room[...] = self.values
            self._hold(room)
        return self.values

    def _room(self) -> Array:
        """Memory for new values: that of the ones before, once nobody reads them, as fresh memory costs page faults."""
        spare = self._spare
        return spare if spare is not None and getrefcount(spare) <= OURS else np.empty_like(self.values)

    def _hold(self, room: Array) -> None:
        self._spare, self.values, self.lent = self.values, room, False

    def read(self, keys: Array | None) -> Array:
        self.lent = True
        return self.values

    def state(self) -> dict[str, Array]:
        """The values, and what the optimizer keeps."""
        return {"values": self.read(None), **{name: slot.copy() for name, slot in self.slots.items()}}

    def replace(self, arrays: Mapping[str, Array]) -> None:
        """Put these in the place of that."""
        self.values, self.lent = np.array(arrays["values"]), False
        self.slots = {name: np.array(arrays[name]) for name in self.slots}

    def dump(self, chunk: int) -> dict[str, Array]:
        if self.round is None:
            return self.state()
        numbers = np.array([self.pushed, *self.round.numbers()], np.int64)
        return {**self.state(), GATHERED: self.gathered.copy(), ROUND: numbers}

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.replace(arrays)
        if self.round is not None:
            pushed, *numbers = arrays[ROUND].tolist()
            self.round, self.pushed = Round.restored(numbers), bool(pushed)
            self.gathered = np.array(arrays[GATHERED])

    def save(self) -> None:
        self._saved = self.dump(self.chunks[0])

    def saved(self, chunk: int) -> dict[str, Array]:
        return self._saved

    def end_save(self) -> None:
        self._saved = {}


def unlike(layout: Places, shard: int, item: Item, arrays: Mapping[str, Array], of_a_user: bool = False) -> str:
    """Why these arrays cannot be what this shard has of an item, as `dump` gives it, or "".

    `of_a_user`: as `state` gives it.
    """
    number, slice_ = item
    table = layout.tables[number]
    slots = table.optimizer.slots  # type: ignore[union-attr]
    shapes: dict[str, tuple[int, ...]]
    kinds = {"keys": np.dtype(np.int64), GATHERED: np.dtype(np.float64), ROUND: np.dtype(np.int64)}
    if isinstance(table, Range):
        part = layout.parts[number][slice_]
        count = part.end - part.first
        shapes = {"values": (count,), **{name: (1 if one else count,) for name, one in slots.items()}}
        if table.mean and not of_a_user:
            shapes |= {GATHERED: (count,), ROUND: (max(3, arrays[ROUND].size if ROUND in arrays else 0),)}
    else:
        keys = arrays.get("keys", np.zeros(0, np.int64))
        count = keys.size
        shapes = {"keys": (count,), "values": (count, table.width)}
        shapes |= {name: (count, 1 if one else table.width) for name, one in slots.items()}
        if keys.dtype != np.int64 or table.unknown(keys) or np.unique(keys).size < count:
            return "its keys are not those of rows, each once"
        if (shares(keys) % layout.shards != shard).any():
            return f"it has rows that are not of shard {shard}"
    for name, shape in shapes.items():
        one = arrays.get(name)
        kind = kinds.get(name, table.dtype)
        if one is None or one.shape != shape or one.dtype != kind:
            found = "missing" if one is None else f"{one.dtype}{list(one.shape)}"
            return f"{name} of table {layout.names[number]!r} is {found}, not {kind}{list(shape)}"
    return ""


class Tables:
    """A `Store`, as shard.py has it.  `folder`: for rows that do not fit the room of their table."""

    def __init__(self, layout: Places, shard: int, folder: str | None = None) -> None:
        self.held: dict[Item, Any] = {}
        self._layout, self._shard, self._encoded = layout, shard, 0
        for number, part in layout.of(shard):
            table = layout.tables[number]
            if isinstance(table, Rows):
                name, where = layout.names[number], default() if folder is None else folder
                self.held[number, 0] = Lines(table, name, shard, layout.shards, where)
            else:
                assert part is not None
                self.held[number, part.number] = Slice(table, part)
        self._means = [item for item, held in self.held.items() if held.round is not None]

    def check(self, change: Change | What) -> str:
        item = change[0], change[1]
        held = self.held.get(item)
        if held is None:
            return f"table {change[0]} has no part {change[1]} here: the worker's tables are not the server's"
        values = change.values if isinstance(change, Change) else None
        if isinstance(values, dict) or values is None and change.codec == ALL:
            return self._unlike(item, values)
        return held.check(change[2], values)  # type: ignore[no-any-return]

    def _unlike(self, item: Item, state: Mapping[str, Array] | None) -> str:
        if isinstance(self.held[item], Lines):
            return "all of a table is for a Range, and this is Rows"
        if state is None:
            return ""
        why = unlike(self._layout, self._shard, item, state, of_a_user=True)
        bad = next((name for name, each in state.items() if not finite(each)), None)
        return why or ("" if bad is None else f"{bad} of table {self._layout.names[item[0]]!r} is not finite")

    def round(self, change: Change | What) -> tuple[Item, Round] | None:
        """The slice and its round, if its table has `mean`, and this is no state for it."""
        item = change[0], change[1]
        round_ = self.held[item].round
        is_state = isinstance(change, Change) and isinstance(change.values, dict)
        return None if round_ is None or is_state else (item, round_)

    def rounds(self) -> list[tuple[Item, Round]]:
        return [(item, self.held[item].round) for item in self._means]

    def apply(self, change: Change) -> None:
        held = self.held[change[0], change[1]]
        if isinstance(change[3], dict):
            held.replace(change[3])
        else:
            held.apply(change[2], change[3])

    def step(self, item: Item, clock: int, workers: int) -> None:
        self.held[item].step(clock, workers)

    def read(self, what: What) -> Array:
        held = self.held[what[0], what[1]]
        values: Array = packed(held.state()) if what.codec == ALL else held.read(what[2])
        if what.codec == ALL:
            return values
        return CODECS[what.codec - 1].encode(values.reshape(-1), self._key()) if what.codec else values

    def _key(self) -> int:
        """The key of a codec's random numbers: another one each time."""
        self._encoded += 1
        return self._encoded

    def items(self) -> list[Item]:
        return [(number, chunk) for (number, _), held in self.held.items() for chunk in held.chunks]

    def dump(self, item: Item) -> dict[str, Array]:
        return self._of(item).dump(item[1])  # type: ignore[no-any-return]

    def load(self, item: Item, value: Mapping[str, Array]) -> None:
        """Raises ValueError: this shard has no such item, or it is otherwise there."""
        why = unlike(self._layout, self._shard, item, value) if self._of(item) else f"no item {item} is here"
        if why:
            raise ValueError(why)
        self._of(item).load(value)

    def clear(self) -> None:
        """Have no rows: all of them come."""
        for held in self.held.values():
            held.clear()

    def _of(self, item: Item) -> Any:
        """The holder of this item; None: there is none."""
        held = self.held.get((item[0], 0))
        return held if isinstance(held, Lines) else self.held.get(item)

    # --- snapshots

    def save(self) -> dict[Item, Callable[[], Mapping[str, Array]]]:
        """A snapshot of now: calls that give its items, in this order, while pushes go on: until `end_save`."""
        for held in self.held.values():
            held.save()
        return {item: partial(self._of(item).saved, item[1]) for item in self.items()}

    def end_save(self) -> None:
        for held in self.held.values():
            held.end_save()
