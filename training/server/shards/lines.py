"""A shard's rows of one table: those that somebody has pushed to, in memory, or some of them in a file (cold.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hocket.training.server.optimizers import Array, Optimizer
from hocket.training.server.shards.cold import Cold
from hocket.training.server.shards.index import Index
from hocket.training.server.tables import CHUNK, Rows, finite, shares

SHARE = 8
"""An eighth of the rows in memory, those that were used longest ago, goes to the file at once."""


class Lines:
    """`folder`: for the file, if the table has `room`.

    A row has a place for good, by the order in which rows came, and a spot in memory, which is its place without
    `room`.  With it, rows used longest ago give their spots to others; those that have changed are written.
    """

    round = None
    """It has none."""

    def __init__(self, table: Rows, name: str, shard: int, shards: int, folder: str) -> None:
        self.table, self._name, self.shard, self.shards, self._folder = table, name, shard, shards, folder
        self.optimizer: Optimizer = table.optimizer  # type: ignore[assignment]
        self._columns = {"values": table.width}
        self._columns |= {slot: 1 if one else table.width for slot, one in self.optimizer.slots.items()}
        self._ends = np.cumsum([0, *self._columns.values()])
        self._most = None if table.room is None else table.room // table.line
        """Rows in memory, at most."""
        self._cold = None if self._most is None else Cold(folder, table.line)
        self.clear()

    def clear(self) -> None:
        """Have no rows."""
        self.index = Index()
        most = self._most or 0
        self._held = np.zeros((most, int(self._ends[-1])), self.table.dtype)  # memory that nobody touches is not taken
        """A line for each spot: a row's values, and what the optimizer keeps."""
        self._spots = np.zeros(0, np.int32)
        """By place; -1: it is in the file."""
        self._places, self._used, self._changed = (np.zeros(most, kind) for kind in (np.int64, np.int64, np.bool_))
        """By spot: whose it is, when it was used, and is it otherwise in the file?"""
        self._spent = self._clock = 0
        self._saving: Saving | None = None

    # --- pushes and pulls

    def check(self, keys: Array | None, values: Array | None) -> str:
        """Also: bring these rows into memory, so that what follows cannot fail."""
        if keys is None:
            return "this is a table of Rows: rows= is missing"
        if why := self.table.unknown(keys):
            return why
        if (shares(keys) % self.shards != self.shard).any():
            return "a key of another shard: the worker's tables are not the server's"
        if values is not None:
            if values.size != keys.size * self.table.width or values.dtype != np.dtype(self.table.dtype):
                return f"{values.dtype}[{values.size}] was pushed to {keys.size} rows of {self.table.width}"
            if not finite(values):
                return "a value that was pushed is not finite"
        return self._warm(keys, values is not None)

    def _warm(self, keys: Array, changes: bool) -> str:
        if self._most is None or not keys.size:
            return ""
        once = np.unique(keys)
        if changes and once.size > self._most // 2:
            return (f"{once.size} rows of table {self._name!r} are more than half of what its room= holds, "
                    f"{self._most}: push fewer, or give it more room")  # fmt: skip
        places = self.index.find(once)
        new, there = int((places < 0).sum()) if changes else 0, places[places >= 0]
        try:
            if once.size > self._most // 2:
                self._lines(there)
            else:
                self._spotted(there, new)
        except OSError as why:
            lost = once[places >= 0][self._spots[there] < 0]
            return (f"table {self._name!r}, rows of key {lost[0] if lost.size else once[0]} and others: {why}; nothing "
                    f"has changed: make room on the file system of {self._folder}, or serve again, which takes rows "
                    "from the copy or the newest snapshot")  # fmt: skip
        return ""

    def apply(self, keys: Array, values: Array) -> None:
        rows = values.reshape(keys.size, self.table.width)
        once, where = np.unique(keys, return_inverse=True)
        if once.size < keys.size:
            summed = np.zeros((once.size, self.table.width), rows.dtype)
            np.add.at(summed, where, rows)
        else:
            summed = np.empty_like(rows)
            summed[where] = rows
        spots = self._placed(once)
        columns = [self._held[spots, first:end] for first, end in self._cuts()]
        self.optimizer.apply(columns[0], summed, dict(zip(self.optimizer.slots, columns[1:], strict=True)))
        for (first, end), each in zip(self._cuts(), columns, strict=True):
            self._held[spots, first:end] = each

    def read(self, keys: Array) -> Array:
        places = self.index.find(keys)
        there = places >= 0
        if there.all():
            return self._lines(places, self.table.width)
        rows = np.empty((keys.size, self.table.width), self.table.dtype)
        rows[~there] = self.table.began(keys[~there])
        rows[there] = self._lines(places[there], self.table.width)
        return rows

    def _placed(self, keys: Array) -> Array:
        """The spots of these rows, which are about to change; those that are new get their initial values."""
        places = self.index.find(keys)
        new = keys[places < 0]
        if self._saving is not None:
            self._saving.keep(places[places >= 0], self._lines)
        spots = np.empty(keys.size, np.int64)
        spots[places >= 0] = self._spotted(places[places >= 0], new.size)
        if new.size:
            first = len(self.index)
            self.index.add(new)
            spots[places < 0] = own = self._taken(np.arange(first, first + new.size))
            self._held[own] = 0
            self._held[own, : self.table.width] = self.table.began(new)
        if self._most is not None:
            self._changed[spots] = True
        return spots

    # --- where rows are

    def _lines(self, places: Array, width: int | None = None) -> Array:
        """These rows, up to a column (None: with what the optimizer keeps); those in the file stay there."""
        if self._cold is None:
            return self._held[places, :width]
        spots = self._spots[places]
        lines = np.empty((places.size, self._held.shape[1]), self._held.dtype)
        warm = spots >= 0
        lines[warm] = self._held[spots[warm]]
        if not warm.all():
            order = np.argsort(places[~warm])
            lines[np.flatnonzero(~warm)[order]] = self._cold.read(places[~warm][order]).view(self._held.dtype)
        return lines[:, :width]

    def _spotted(self, places: Array, more: int) -> Array:
        """The spots of these rows, which come into memory if they are not there; `more` are free beside them."""
        if self._cold is None:
            return places
        self._clock += 1
        spots = self._spots[places]
        self._used[spots[spots >= 0]] = self._clock
        cold = np.sort(places[spots < 0])
        if cold.size or more:
            self._free(cold.size + more)
            if cold.size:
                lines = self._cold.read(cold).view(self._held.dtype)
                self._held[self._taken(cold)] = lines
                self._changed[self._spots[cold]] = False
            spots = self._spots[places]
        return spots

    def _free(self, count: int) -> None:
        """So many spots can be taken: others' rows go to the file if there are not."""
        assert self._cold is not None and self._most is not None
        lacking = self._spent + count - self._most
        if lacking <= 0:
            return
        victims = self._oldest(max(lacking, self._spent // SHARE))
        changed = victims[self._changed[victims]]
        changed = changed[np.argsort(self._places[changed])]
        for first in range(0, changed.size, CHUNK):
            some = changed[first : first + CHUNK]
            self._cold.write(self._places[some], self._held[some].view(np.uint8))
        self._spots[self._places[victims]] = -1
        self._spent -= victims.size
        stay = np.setdiff1d(np.arange(self._spent + victims.size), victims, assume_unique=True)
        move, home = stay[stay >= self._spent], victims[victims < self._spent]
        for array in (self._held, self._places, self._used, self._changed):
            array[home] = array[move]
        self._spots[self._places[home]] = home

    def _oldest(self, count: int) -> Array:
        """The spots that were used longest ago, but for what is used just now."""
        used: Any = self._used[: self._spent]
        free = int((used < self._clock).sum())
        return np.argpartition(used, min(count, free) - 1)[: min(count, free)]

    def _taken(self, places: Array) -> Array:
        """Spots for these, which have none."""
        if self._cold is None:
            end = int(places[-1]) + 1
            if end > len(self._held):
                self._held = _longer(self._held, max(end, 2 * len(self._held), 16))
            return places
        if places[-1] >= len(self._spots):
            self._spots = _longer(self._spots, max(int(places[-1]) + 1, 2 * len(self._spots), 16))
        spots = np.arange(self._spent, self._spent + places.size)
        self._spent += places.size
        self._spots[places], self._places[spots], self._used[spots] = spots, places, self._clock
        return spots

    def _cuts(self) -> Iterator[tuple[int, int]]:
        return zip(self._ends[:-1].tolist(), self._ends[1:].tolist(), strict=True)

    # --- items

    @property
    def chunks(self) -> range:
        """Numbers of its items."""
        return range(max(1, -(-len(self.index) // CHUNK)))

    def dump(self, chunk: int) -> dict[str, Array]:
        places = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, len(self.index)))
        return self._named(places, self._lines(places))

    def _named(self, places: Array, lines: Array) -> dict[str, Array]:
        cuts = zip(self._columns, self._cuts(), strict=True)
        return {"keys": self.index.keys[places], **{name: lines[:, first:end] for name, (first, end) in cuts}}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """These rows are so from now on."""
        most = CHUNK if self._most is None else self._most // 2
        for first in range(0, len(arrays["keys"]), most):
            part = slice(first, first + most)
            spots = self._placed(arrays["keys"][part])
            for name, (begin, end) in zip(self._columns, self._cuts(), strict=True):
                self._held[spots, begin:end] = arrays[name][part]

    # --- a snapshot while pushes go on

    def save(self) -> None:
        """From now on `saved` gives the rows of the present items as they are now."""
        self._saving = Saving(len(self.index))

    def saved(self, chunk: int) -> dict[str, Array]:
        assert self._saving is not None
        places = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, self._saving.count))
        return self._named(places, self._saving.restored(places, self._lines(places)))

    def end_save(self) -> None:
        self._saving = None


class Saving:
    """The rows that have changed since a snapshot began, as they were then, if they have not been written yet."""

    def __init__(self, count: int) -> None:
        self.count, self._written = count, 0
        self._kept = np.zeros(count, np.bool_)
        self._before: list[tuple[Array, Array]] = []

    def keep(self, places: Array, lines: Any) -> None:
        due = places[(places < self.count) & (places >= self._written)]
        due = due[~self._kept[due]]
        if due.size:
            self._kept[due] = True
            self._before.append((due, lines(due)))

    def restored(self, places: Array, lines: Array) -> Array:
        """`lines` of these, which are written next, as they were."""
        for changed, before in self._before:
            its = (changed >= places[0]) & (changed <= places[-1]) if places.size else np.zeros(0, np.bool_)
            lines[changed[its] - places[0]] = before[its]
        self._written += places.size
        self._before = [(c[k], b[k]) for c, b in self._before if (k := c >= self._written).any()]
        return lines


def _longer(array: Array, size: int) -> Array:
    longer = np.zeros((size, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
