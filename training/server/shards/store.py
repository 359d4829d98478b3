"""The tables of one shard in memory: what a push changes, and what a pull reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hocket.codecs import CODECS
from hocket.training.server.optimizers import Array, Optimizer
from hocket.training.server.shards.packing import ALL, packed
from hocket.training.server.shards.rounds import Round
from hocket.training.server.tables import Layout, Part, Range, Rows, shares

Item = tuple[int, int]
"""A table and a slice of it; for rows the slice is 0."""


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


GATHERED, ROUND = "gathered", "round"
"""Names in the dump of a slice with `mean`: the sum of what was pushed since its step, and its `Round`."""


class Slice:
    """A part of a `Range`, and what its optimizer keeps.  What a reader was lent is not changed: a push copies it.

    An array that is pushed to an optimizer that `overwrites` belongs to the slice from then on.
    """

    def __init__(self, table: Range, part: Part) -> None:
        self.optimizer: Optimizer = table.optimizer  # type: ignore[assignment]
        self.values = table.began(part.first, part.end)
        self.slots = {name: np.zeros(1 if one else self.values.size, self.values.dtype)
                      for name, one in self.optimizer.slots.items()}  # fmt: skip
        self.lent = False
        self.round = Round() if table.mean else None
        self.gathered = np.zeros(self.values.size if table.mean else 0)
        """float64: the order in which workers come changes hardly a bit of the mean."""
        self.pushed = False

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
            self.values, self.lent = self.values.copy(), False
        return self.values

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

    def dump(self) -> dict[str, Array]:
        if self.round is None:
            return self.state()
        numbers = np.array([self.round.done, self.pushed, *sorted(self.round.given)], np.int64)
        return {**self.state(), GATHERED: self.gathered.copy(), ROUND: numbers}

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.replace(arrays)
        if self.round is not None:
            done, pushed, *given = arrays[ROUND].tolist()
            self.round, self.pushed = Round(done), bool(pushed)
            self.round.given.update(given)
            self.gathered = np.array(arrays[GATHERED])


class Lines:
    """A shard's rows of one table: those that somebody has pushed to."""

    round = None
    """It has none."""

    def __init__(self, table: Rows, number: int, shard: int, shards: int) -> None:
        self.table, self.shard, self.shards = table, shard, shards
        self.optimizer: Optimizer = table.optimizer  # type: ignore[assignment]
        self.places: dict[int, int] = {}
        self._room(0)

    def _room(self, rows: int) -> None:
        dtype, width = self.table.dtype, self.table.width
        self.values = np.zeros((rows, width), dtype)
        self.slots = {name: np.zeros((rows, 1 if one else width), dtype) for name, one in self.optimizer.slots.items()}

    def check(self, keys: Array | None, values: Array | None) -> str:
        if keys is None:
            return "this is a table of Rows: rows= is missing"
        if why := self.table.unknown(keys):
            return why
        if (shares(keys) % self.shards != self.shard).any():
            return "a key of another shard: the worker's tables are not the server's"
        if values is None:
            return ""
        if values.size != keys.size * self.table.width or values.dtype != self.values.dtype:
            return f"{values.dtype}[{values.size}] was pushed to {keys.size} rows of {self.table.width}"
        return "" if finite(values) else "a value that was pushed is not finite"

    def apply(self, keys: Array, values: Array) -> None:
        rows = values.reshape(keys.size, self.table.width)
        once, where = np.unique(keys, return_inverse=True)
        if once.size < keys.size:
            summed = np.zeros((once.size, self.table.width), rows.dtype)
            np.add.at(summed, where, rows)
        else:
            summed = np.empty_like(rows)
            summed[where] = rows
        places = self._placed(once)
        part, slots = self.values[places], {name: slot[places] for name, slot in self.slots.items()}
        self.optimizer.apply(part, summed, slots)
        self.values[places] = part
        for name, slot in slots.items():
            self.slots[name][places] = slot

    def _placed(self, keys: Array) -> Array:
        """Where these rows are; those that are new get room, and their initial values."""
        known = self.places
        new = [key for key in keys.tolist() if key not in known]
        if new:
            first, end = len(known), len(known) + len(new)
            if end > len(self.values):
                before = self.values, self.slots
                self._room(max(end, 2 * len(self.values), 16))
                self.values[:first] = before[0][:first]
                for name, slot in before[1].items():
                    self.slots[name][:first] = slot[:first]
            known.update(zip(new, range(first, end), strict=True))
            self.values[first:end] = self.table.began(np.array(new, np.int64))
        return np.array([known[key] for key in keys.tolist()], np.int64)

    def read(self, keys: Array) -> Array:
        places = np.array([self.places.get(key, -1) for key in keys.tolist()], np.int64)
        new = places < 0
        if not new.any():
            return self.values[places]
        rows = np.empty((keys.size, self.table.width), self.values.dtype)
        rows[new] = self.table.began(keys[new])
        rows[~new] = self.values[places[~new]]
        return rows

    def dump(self) -> dict[str, Array]:
        n = len(self.places)
        arrays = {name: slot[:n].copy() for name, slot in self.slots.items()}
        return {"keys": np.array([*self.places], np.int64), "values": self.values[:n].copy(), **arrays}

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.places = {key: place for place, key in enumerate(arrays["keys"].tolist())}
        self.values = np.array(arrays["values"])
        self.slots = {name: np.array(arrays[name]) for name in self.slots}


def unlike(layout: Layout, shard: int, item: Item, arrays: Mapping[str, Array], of_a_user: bool = False) -> str:
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
            shapes |= {GATHERED: (count,), ROUND: (max(2, arrays[ROUND].size if ROUND in arrays else 0),)}
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
    """A `Store`, as shard.py has it."""

    def __init__(self, layout: Layout, shard: int) -> None:
        self.held: dict[Item, Any] = {}
        self._layout, self._shard, self._encoded = layout, shard, 0
        for number, part in layout.of(shard):
            table = layout.tables[number]
            if isinstance(table, Rows):
                self.held[number, 0] = Lines(table, number, shard, layout.shards)
            else:
                assert part is not None
                self.held[number, part.number] = Slice(table, part)

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
        return [(item, held.round) for item, held in self.held.items() if held.round is not None]

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
        if what.codec == ALL:
            return packed(held.state())
        values: Array = held.read(what[2])
        return CODECS[what.codec - 1].encode(values.reshape(-1), self._key()) if what.codec else values

    def _key(self) -> int:
        """The key of a codec's random numbers: another one each time."""
        self._encoded += 1
        return self._encoded

    def items(self) -> list[Item]:
        return [*self.held]

    def dump(self, item: Item) -> dict[str, Array]:
        return self.held[item].dump()  # type: ignore[no-any-return]

    def load(self, item: Item, value: Mapping[str, Array]) -> None:
        """Raises ValueError: this shard has no such item, or it is otherwise there."""
        why = unlike(self._layout, self._shard, item, value) if item in self.held else f"no item {item} is here"
        if why:
            raise ValueError(why)
        self.held[item].load(value)


def finite(values: Array) -> bool:
    """The sum of squares of finite numbers may overflow, so a sum that is not finite is looked at again."""
    flat = values if values.ndim == 1 else values.reshape(-1)
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())
