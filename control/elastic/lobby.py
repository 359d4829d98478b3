"""A newcomer's way into a job: it waits with a member until the members let it in, at their next generation."""

from __future__ import annotations

from typing import Any, NamedTuple

from hocket.control.protocol.seats import Seat


class Enter(NamedTuple):
    """I want to be a member."""

    seat: Seat


class Asks(NamedTuple):
    """Asks what the members tell those who may come."""


class Tells(NamedTuple):
    """This."""

    notice: Any


class Admitted(NamedTuple):
    """You are one, of this generation."""

    generation: int
    seats: list[Seat]
    infos: list[Any]
    previous: list[int | None]
    """The rank that each had in the generation before."""
    job: str
    most: int


class Full(NamedTuple):
    """There is no room: the job has so many members at most."""

    most: int
