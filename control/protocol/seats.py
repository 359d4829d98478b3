"""A seat: a process of a job whose members change, or one that wants to be; and how its own words are checked."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from hocket.control.protocol.checking import Malformed, checked

PID, PORT, TICK, UID = 1 << 31, 1 << 16, 1 << 62, 64
"""All are below: the numbers that a seat says, and the length of its name."""


class Seat(NamedTuple):
    """A process of the job, or one that wants to be."""

    uid: str
    addresses: list[list[Any]]
    """Where its listener is: ["unix", path] or ["tcp", host, port]."""
    host: str
    """Processes of one `host` can see each other in its kernel's table."""
    pid: int
    started: int
    """When, by that kernel's clock: a pid alone may be another's by now."""
    info: Any = None
    """The newcomer's own words."""
    public: str = ""
    """Its public key, by which it proves that it is this process; "": it cannot."""


def makes_sense(seat: Seat) -> bool:
    """Can members use it?  Where a process listens, and which it is, are its own words."""
    return (
        0 < len(seat.uid) < UID and seat.uid.isprintable() and seat.addresses != []
        and all(map(_is_place, seat.addresses)) and 0 < seat.pid < PID and 0 <= seat.started < TICK
        and (not seat.public or bool(re.fullmatch("[0-9a-f]{64}", seat.public)) and seat.uid == uid_of(seat.public))
    )  # fmt: skip


def uid_of(public: str) -> str:
    """The name of the process with this public key: who passes its seat on cannot put another key into it."""
    return hashlib.sha256(public.encode()).hexdigest()[:16]


def _is_place(address: list[Any]) -> bool:
    kinds = [type(each) for each in address]
    if not kinds or kinds[0] is not str:
        return False
    if address[0] == "unix":
        return kinds == [str, str]
    return address[0] == "tcp" and kinds == [str, str, int] and 0 < address[2] < PORT


def name_of(seat: Seat) -> str:
    """The name of a seat in an agreement: all that the others need to know of it."""
    return json.dumps(seat, separators=(",", ":"))


def seat_of(name: str) -> Seat:
    """Raises Malformed."""
    try:
        seat: Seat = checked(Seat, json.loads(name), "newcomer")
    except (ValueError, RecursionError) as why:
        raise Malformed(f"newcomer: {why}") from None
    if not makes_sense(seat):
        raise Malformed(f"newcomer: {name[:80]!r} cannot be used")
    return seat
