"""The settings of a scheduler, and the check that all ranks ask and declare alike."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.arguments import choices, whole
from hocket.compression import Method, resolved
from hocket.errors import ArgumentError, MismatchError
from hocket.training.overlap.orders import AGREED, ORDERS

Row = Sequence[Any]
_made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""The number of schedulers of each communicator: a lane's name stands for one priority."""


class Settings(NamedTuple):
    """The arguments of `Scheduler`."""

    order: str | list[str]
    lanes: int
    slice: int | None
    """Bytes; None: "auto"."""
    fuse: int | None
    codec: Any
    method: Method | None
    passes: int = 0
    """Addends of a tensor in each step, where averages are exact; 0: they are not."""
    credit: int = 1

    @property
    def apart(self) -> bool:
        """Are elements encoded, so that exact numbers travel in calls of their own?"""
        return self.codec is not None or self.method is not None

    def plain(self, serial: int) -> Row:
        """The row that ranks tell each other of the scheduler that their communicator's `serial`-th one is."""
        fewer = self.codec if self.method is None else self.method.name
        coded = None if fewer is None else str(fewer)
        return [self.order, self.lanes, self.slice, self.fuse, coded, self.credit, self.passes > 0, serial]


def checked(
    order: str | Sequence[str], lanes: int, slice: int | str | None, fuse: int | str, codec: Any, compressor: Any,
    exact: bool = False, passes: int = 1, credit: int = 1,
) -> Settings:  # fmt: skip
    """The settings.  ArgumentError."""
    if isinstance(order, str) and order not in (*ORDERS, AGREED):
        raise ArgumentError(f"order={order!r} is unknown; {choices(order, (*ORDERS, AGREED))}")
    settings = Settings(
        order if isinstance(order, str) else [*order], whole(lanes, "lanes"), _bytes(slice, "slice"),
        _bytes(fuse, "fuse"), codec, None if compressor is None else resolved(compressor),
        whole(passes, "passes") if exact else 0, whole(credit, "credit"))  # fmt: skip
    if settings.credit < 1:
        raise ArgumentError(f"credit={credit} must be 1 or more: the calls of a lane that may be under way at once")
    if settings.credit > 1 and compressor is not None:
        raise ArgumentError(f"credit={credit} goes without compressor=, whose calls need the ones before: leave it out")
    if settings.lanes < 1 or (settings.slice or 0) < 0 or (settings.fuse or 0) < 0:
        raise ArgumentError(f"lanes={lanes}, slice={slice!r}, fuse={fuse!r} must be positive numbers")
    if codec is not None and compressor is not None:
        raise ArgumentError("give codec= or compressor=, not both")
    if exact and settings.apart:
        raise ArgumentError("exact=True goes with no codec and no compressor, which round: omit one of them")
    if whole(passes, "passes") < 1 or passes > 1 and (not exact or order == AGREED):
        raise ArgumentError(f"passes={passes} must be 1, or more with exact=True and another order than {AGREED!r}")
    return settings


def _bytes(value: int | str | None, what: str) -> int | None:
    return None if value == "auto" else whole(0 if value is None else value, what)


def agree(comm: Any, settings: Settings, declared: Row) -> int:
    """A call of all ranks: have they the same settings and declarations?  The number of this scheduler of `comm`'s.

    MismatchError, which names what differs from rank 0.
    """
    serial = _made.get(comm, 0)
    rows = comm.share([settings.plain(serial), declared], "Scheduler: the first ready()")
    first = comm.members[0]
    for rank, (given, others) in zip(comm.members, rows, strict=True):
        if given != rows[0][0]:
            raise MismatchError(f"Scheduler: rank {rank} has {_words(given)}, rank {first} {_words(rows[0][0])}")
        if others != rows[0][1]:
            raise MismatchError(f"Scheduler: {_difference(rank, others, first, rows[0][1])}")
    _made[comm] = serial + 1
    return serial


def _words(settings: Row) -> str:
    order, lanes, slice, fuse, codec, credit, exact, serial = settings
    return (f"order={order!r}, lanes={lanes}, slice={slice}, fuse={fuse}, credit={credit}, exact={exact}, "
            f"codec or compressor {codec} (None: auto) in its scheduler {serial}")


def _difference(rank: int, declared: Row, first: int, others: Row) -> str:
    """The first tensor in which this rank's declaration differs from that of the first one."""
    for i in range(max(len(declared), len(others))):
        own, other = (rows[i] if i < len(rows) else None for rows in (declared, others))
        if own != other:
            words = [f"{row[0]!r}, {row[1]}{tuple(row[2])}" if row else "nothing more" for row in (own, other)]
            return f"rank {rank} declared {words[0]} as tensor {i}, rank {first} {words[1]}"
    return f"rank {rank} declared other tensors than rank {first}"
