"""The rounds of a random program: rounds, as data.  All ranks hold the same ones."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass


@dataclass(frozen=True)
class Call:
    """One collective.  `rows` are a rank's block, or all of it where there are no blocks; `tail` is the shape of a row.

    None as `rows`: a scalar.
    """

    collective: str
    dtype: str
    rows: int | None
    tail: tuple[int, ...]
    counts: tuple[int, ...] | None
    """Rows of each rank, of a v-variant."""
    matrix: tuple[tuple[int, ...], ...]
    """Rows that each rank sends to each, of alltoallv."""
    op: str | None
    factors: tuple[float, ...]
    root: int
    order: str
    algorithm: str | None
    transport: str | None
    way: str
    """Where the result goes: a new array, out=, in place (a rank's own block, where that is what it means)."""
    mapped: bool
    """Arrays are hocket.empty's."""
    bare: tuple[bool, ...]
    """Ranks other than the root that give scatter no x."""
    later: tuple[bool, ...]
    """Ranks that make it asynchronous."""
    repeats: int
    """The number of calls: from the second time on it takes a shorter way."""
    codec: str | None = None
    """One of values.CODECS."""
    keeps: bool = False
    """Has it a residual?"""


@dataclass(frozen=True)
class Message:
    source: int
    dest: int
    tag: int
    count: int
    any: bool = False
    """Is it received from any source?"""


@dataclass(frozen=True)
class Calls:
    """Collectives on one communicator, by themselves or as a group."""

    comm: int
    calls: tuple[Call, ...]
    together: bool


@dataclass(frozen=True)
class Messages:
    """A round of messages on one communicator.  style: group; wait (asynchronous); leave (asynchronous, waited for
    later); ring and self (sendrecv); blocking (all to one rank, which receives them from any).
    """

    comm: int
    style: str
    dtype: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Make:
    """New communicators of an old one: by split (`colors`, `keys`), dup, subgroup or create_group (`ranks`)."""

    comm: int
    how: str
    colors: tuple[int | None, ...]
    keys: tuple[int, ...]
    ranks: tuple[int, ...]
    made: tuple[tuple[int, tuple[int, ...]], ...]
    """Number and members, as ranks of the world."""


@dataclass(frozen=True)
class Drop:
    """A communicator is closed, or only forgotten; `settled`: what is under way on it ends first."""

    comm: int
    close: bool
    settled: bool


@dataclass(frozen=True)
class Settle:
    """Wait for all that is under way."""


Round = Calls | Messages | Make | Drop | Settle


def as_text(each: object) -> str:
    """A round, or a part of it, in short: fields that hold nothing are left out."""
    if isinstance(each, tuple):
        return f"({', '.join(map(as_text, each))}{',' if len(each) == 1 else ''})"
    if not is_dataclass(each):
        return repr(each)
    values = {field.name: getattr(each, field.name) for field in fields(each)}
    shown = {name: value for name, value in values.items() if value not in (None, (), False) and any_of(value)}
    return f"{type(each).__name__}({', '.join(f'{name}={as_text(value)}' for name, value in shown.items())})"


def any_of(value: object) -> bool:
    """Is it more than a row of False?"""
    return not isinstance(value, tuple) or any(each is not False for each in value)
