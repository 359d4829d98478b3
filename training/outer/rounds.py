"""A round: while it is under way, and what is told of it when it has ended."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from hocket.training.flat import Array
from hocket.training.outer.fragments import Fragment


class Report(NamedTuple):
    """A round that has ended."""

    step: int
    """Steps of this rank when it ended."""
    fragment: int
    members: tuple[Any, ...]
    """The members that took part: ranks of the communicator, or names of the crew's."""
    weights: tuple[float, ...]
    """The part of the average that each member's is."""
    left_out: tuple[Any, ...]
    """Members of the crew that were late."""
    bytes: int
    """Bytes of this rank's fragment on the wire, once: an allreduce sends that 2 (p-1)/p times."""
    seconds: float
    """From the beginning of the round to its average ..."""
    exposed: float
    """... and those of them in which `step` waited."""


@dataclass
class Flight:
    """A round that has begun."""

    number: int
    fragment: Fragment
    due: int
    gradient: Array
    """D, then its average."""
    weight: float
    at: tuple[int, int]
    """Counts and steps when it began."""
    members: tuple[Any, ...] = ()
    weights: tuple[float, ...] = ()
    bytes: int = 0
    seconds: float = 0.0
    exposed: float = 0.0
    ended: Future[None] | None = None
    """None: in the caller's thread, which has waited for it."""
    wrong: str = ""
    """Changes of this rank's parameters since the beginning: replaced, thawed, added."""
