"""Tables, as users describe them, and how they are dealt to shards.

A `Range` is an array, cut into slices; a `Rows` has rows by key, hashed into 1,024 shares (an embedding).  Slices and
shares are dealt to the shards in turn, so that every process that knows the tables and the number of shards knows where
everything is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from hocket.arguments import choices, kind, whole
from hocket.codecs import Codec
from hocket.errors import ArgumentError
from hocket.training.server.optimizers import Array, Optimizer, optimizer

SHARES = 1024
SLICE = 1 << 20
"""Bytes of a slice, at most."""
DTYPES = ("float32", "float64")
CHUNK = 1 << 13
"""Rows that are one item: of a snapshot, and of what is sent to a copy."""
LEAST = 1024
"""Rows that a table's room has to hold."""
LAST = 2**63 - 1
"""The largest key."""
LONGEST = 1 << 30
"""Bytes of rows and their keys in one push or pull to one server, at most."""


@dataclasses.dataclass
class Range:
    """An array of this shape, the same size always.

    `optimizer`: "sum" (what is pushed is added), "put", "sgd", "momentum", "adagrad", "adam", an `Optimizer` with its
    parameters, or `f(values, pushed)` that changes `values`, a part of the array as a vector, in place.  `initial`: a
    number, or an array of the shape.  `slice`: bytes of a part that is pushed, answered and replaced as one.

    `mean`, with clock="bsp": a slice steps once a clock, by the mean of all workers' pushes (of who ends the clock
    without one, zeros; where nobody pushes, nothing steps), as soon as each has pushed or ended the clock.  A worker
    pushes once a clock, and sees its own push in the next.  Memory: a float64 for each element.
    """

    shape: int | tuple[int, ...]
    dtype: str = "float32"
    optimizer: str | Optimizer | Callable[[Array, Array], object] = "sum"
    initial: Any = 0.0
    slice: int = SLICE
    mean: bool = False

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape) if isinstance(self.shape, (tuple, list)) else (whole(self.shape, "shape"),)
        self.dtype, self.optimizer = checked(self.dtype), optimizer(self.optimizer)
        if np.shape(self.initial) not in ((), self.shape):
            shape = np.shape(self.initial)
            raise ArgumentError(f"initial must be a number or an array of shape {self.shape}; it has shape {shape}")
        if whole(self.slice, "slice") < 1:
            raise ArgumentError(f"slice={self.slice} must be a number of bytes, at least 1")

    @property
    def size(self) -> int:
        return math.prod(self.shape)  # type: ignore[arg-type]

    def parts(self, shards: int) -> list[tuple[int, int]]:
        """First element and end of each slice; at least one for each shard, if there are so many elements."""
        most = max(1, min(self.slice // np.dtype(self.dtype).itemsize, -(-self.size // shards)))
        return [(first, min(first + most, self.size)) for first in range(0, self.size, most)]

    def began(self, first: int, end: int) -> Array:
        """A slice's values at the beginning."""
        flat = np.broadcast_to(np.asarray(self.initial, self.dtype), self.shape).reshape(-1)
        return flat[first:end].copy()

    def said(self) -> str:
        """The words that all ranks have to say alike."""
        mean = ", mean=True" if self.mean else ""
        return f"Range({self.shape}, {self.dtype}, {self.optimizer!r}, slice={self.slice}{mean})"


@dataclasses.dataclass
class Rows:
    """Rows of `width` numbers by key, a whole number from 0 on, below `rows` if that is given.

    A row that nobody has pushed to has its initial value: uniform in -scale to scale, by the seed and its key alone;
    `scale` is 1 / sqrt(width) by default.  `optimizer`: as in `Range`; it sees the pushed rows as a matrix, each key
    once: what one push has for a key several times is added up first.

    `room`: bytes of rows, with what their optimizer keeps, that a shard has in memory, at most; those that were not
    used for longest lie in a file (`serve(cold=)`).  None: all are in memory.  Beside it a row costs 40 to 80 bytes.
    """

    width: int
    dtype: str = "float32"
    optimizer: str | Optimizer | Callable[[Array, Array], object] = "sum"
    rows: int | None = None
    seed: int = 0
    scale: float | None = None
    room: int | None = None

    def __post_init__(self) -> None:
        self.dtype, self.optimizer = checked(self.dtype), optimizer(self.optimizer)
        if whole(self.width, "width") < 1 or (self.rows is not None and whole(self.rows, "rows") < 1):
            raise ArgumentError(f"width={self.width} and rows={self.rows} must be at least 1")
        self.scale = 1 / math.sqrt(self.width) if self.scale is None else self.scale
        if self.room is not None and whole(self.room, "room") < (least := LEAST * self.line):
            raise ArgumentError(f"room={self.room} must hold {LEAST} rows and their optimizer's part: {least} bytes")

    @property
    def line(self) -> int:
        """Bytes of a row with what its optimizer keeps."""
        columns = [1 if one else self.width for one in self.optimizer.slots.values()]  # type: ignore[union-attr]
        return (self.width + sum(columns)) * np.dtype(self.dtype).itemsize

    def unknown(self, keys: Array) -> str:
        """Which of the keys there cannot be, or ""."""
        if not keys.size or (int(keys.min()) >= 0 and (self.rows is None or int(keys.max()) < self.rows)):
            return ""
        bad = next(key for key in keys.tolist() if key < 0 or (self.rows is not None and key >= self.rows))
        return f"key {bad} is unknown: keys are 0 to {LAST if self.rows is None else self.rows - 1}"

    def began(self, keys: Array) -> Array:
        """These rows' values at the beginning."""
        if not self.scale:
            return np.zeros((keys.size, self.width), self.dtype)
        cells = keys.astype(np.uint64)[:, None] * np.uint64(self.width) + np.arange(self.width, dtype=np.uint64)
        start = np.uint64(self.seed * 0x9E3779B97F4A7C15 % 2**64)
        random = (mixed(cells + start) >> np.uint64(11)) * 2.0**-53
        return np.asarray((2 * random - 1) * float(self.scale or 0), self.dtype)

    def nbytes(self, count: int) -> int:
        """Bytes of so many rows and their keys."""
        return count * (8 + self.width * np.dtype(self.dtype).itemsize)

    def said(self) -> str:
        return f"Rows({self.width}, {self.dtype}, {self.optimizer!r}, {self.rows}, {self.seed}, {self.scale})"


Table = Range | Rows


def mixed(x: Array) -> Array:
    """The finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def shares(keys: Array) -> Array:
    """Which of the SHARES each key is in.

    >>> shares(np.arange(4)).tolist()
    [0, 485, 138, 240]
    """
    return (mixed(keys.astype(np.uint64)) % np.uint64(SHARES)).astype(np.int64)


def as_keys(rows: Any) -> Array:
    """Keys of rows as int64."""
    keys = np.asarray(rows)
    if rows is None or keys.ndim != 1 or keys.dtype.kind not in "iu":
        raise ArgumentError(f"rows={rows!r} must be whole numbers, one for each row")
    if keys.dtype.kind == "u" and keys.size and int(keys.max()) > LAST:
        raise ArgumentError(f"key {int(keys.max())} is unknown: keys are 0 to {LAST}")
    return keys.astype(np.int64, copy=False)


HEADING = 64 << 10
"""Bytes of names and shapes beside arrays, at most."""


class TableSlice(NamedTuple):
    """A slice of a `Range`."""

    number: int
    first: int
    end: int
    shard: int


class Places:
    """The tables in the order of their names, and where their parts are."""

    def __init__(self, tables: Mapping[str, Table], shards: int) -> None:
        if not isinstance(tables, Mapping) or not tables:
            raise ArgumentError(f"tables must be Range and Rows by name, at least one; got {kind(tables)}")
        for name, table in tables.items():
            if not isinstance(name, str) or not isinstance(table, (Range, Rows)):
                raise ArgumentError(f"table {name!r} must be a Range or Rows; got {kind(table)}")
        self.shards, self.names, self.by_name = shards, sorted(tables), tables
        self.tables = [tables[name] for name in self.names]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.parts: list[list[TableSlice]] = []
        turn = 0
        for table in self.tables:
            cut = table.parts(shards) if isinstance(table, Range) else []
            self.parts.append([TableSlice(i, *ends, (turn + i) % shards) for i, ends in enumerate(cut)])
            turn += len(cut)

    def number(self, name: str) -> int:
        """The number of the table with this name."""
        number = self._numbers.get(name)
        if number is None:
            raise ArgumentError(f"{name!r} is not a table; {choices(name, self.names)}")
        return number

    def of(self, shard: int) -> Iterator[tuple[int, TableSlice | None]]:
        """A shard's tables and slices; None: its rows of that table."""
        for number, table in enumerate(self.tables):
            if isinstance(table, Rows):
                yield number, None
            for part in self.parts[number]:
                if part.shard == shard:
                    yield number, part

    def longest(self, table: int, part: int, keys: int, codec: Codec | None) -> int:
        """Bytes that may follow the header of a push, at most.  Raises LookupError: there is no such part."""
        definition = self.tables[table]
        if isinstance(definition, Rows):
            if definition.nbytes(keys) > LONGEST:
                raise ValueError(f"{keys} rows are more than {LONGEST} bytes")
            count = keys * definition.width
        else:
            slice_ = self.parts[table][part]
            count = 0 if keys else slice_.end - slice_.first
        return codec.nbytes(count) if codec is not None else count * np.dtype(definition.dtype).itemsize

    def longest_item(self, table: int) -> int:
        """Bytes of a part with what its optimizer keeps, as it comes to a copy."""
        definition = self.tables[table]
        arrays = 2 + len(definition.optimizer.slots)  # type: ignore[union-attr]
        if isinstance(definition, Range):
            arrays += 2 * definition.mean
            slice_ = max((part.end - part.first for part in self.parts[table]), default=0)
            return HEADING + arrays * slice_ * np.dtype(definition.dtype).itemsize
        return HEADING + arrays * definition.nbytes(CHUNK)

    def overwrites(self, table: int) -> bool:
        """Do its slices keep the arrays that are pushed?"""
        its = self.tables[table]
        return isinstance(its, Range) and its.optimizer.overwrites and not its.mean  # type: ignore[union-attr]

    def said(self) -> str:
        """The words that all ranks have to say alike."""
        return "; ".join(f"{name}: {table.said()}" for name, table in zip(self.names, self.tables, strict=True))


def checked(dtype: Any) -> str:
    name = str(np.dtype(dtype).name)
    if name not in DTYPES:
        raise ArgumentError(f"dtype={dtype!r} is unknown; {choices(name, DTYPES)}")
    return name


def finite(values: Array) -> bool:
    """The sum of squares of finite numbers may overflow, so a sum that is not finite is looked at again."""
    flat = values if values.ndim == 1 else values.reshape(-1)
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())
