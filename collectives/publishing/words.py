"""Words of a publisher and its readers: JSON texts over a communicator of two, and layouts as JSON has them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from hocket.collectives.job.hosts import machine
from hocket.collectives.layouts.boxes import Box, plain
from hocket.collectives.layouts.layout import Layout
from hocket.errors import TimeoutError, TransportError
from hocket.system.machine import boot_id, own_folder

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

TALK = 3
"""The tag of texts; elements have those before (moving.py)."""
BLOCK, STRAIGHT, PACKS = range(3)
"""The way of a message: through a block of memory, from memory to memory, packed."""
BYE = {"what": "bye"}
"""The last word of a reader."""
LONGEST, ASKED = 1 << 28, 1 << 24
"""Bytes of a text, at most: of a publisher's, and of a reader's."""


def here() -> str:
    """A text that processes of one host have alike."""
    facts = {"kernel": boot_id(), "node": os.uname().nodename, "folder": own_folder(os.environ)}
    return hashlib.blake2b(repr(machine(facts, True)).encode(), digest_size=16).hexdigest()


def tell(pair: Communicator, value: Any, timeout: float | None = None) -> None:
    """Send a JSON value to the other one."""
    pair.send(numpy.frombuffer(json.dumps(value).encode(), numpy.uint8), 1 - pair.rank, TALK, timeout=timeout)


def hear(pair: Communicator, timeout: float | None = None, most: int = LONGEST) -> Any:
    """The next JSON value of the other one, of so many bytes at most.  Raises TimeoutError, TransportError."""
    message = pair.probe(1 - pair.rank, TALK, timeout)
    if message is None:
        raise TimeoutError(f"the other end of {pair.name!r} says nothing", [1 - pair.rank])
    if message.nbytes > most or message.dtype != "uint8":
        raise TransportError(f"a text of {message.nbytes} bytes of {message.dtype} is not one of hocket's")
    data = pair.recv(numpy.empty(message.nbytes, numpy.uint8), 1 - pair.rank, TALK)
    try:
        return json.loads(data.tobytes())
    except (ValueError, RecursionError):
        raise TransportError("what the other end says is not JSON") from None


def leave(pair: Communicator, who: str) -> None:
    """Close it.  The words that one end has not heard are no error of this process, whose exit code they would be."""
    pair.close(timeout=0.1, log_as=who)
    pair.world.unraised = False


def told_box(box: Box) -> list[list[int]]:
    """A box as JSON."""
    return [[r.start, r.stop, r.step] for r in box]


def heard_box(value: Any) -> Box:
    """A box from JSON.  Raises TransportError."""
    try:
        return tuple(plain(range(int(start), int(stop), max(1, int(step)))) for start, stop, step in value)
    except (TypeError, ValueError) as why:
        raise TransportError(f"{str(value)[:40]!r} is not a box") from why


def told_layouts(layouts: Sequence[Layout]) -> list[Any]:
    """Layouts as JSON, each once: what is the same is said by its place."""
    places: dict[Layout, int] = {}
    found: list[Any] = []
    for layout in layouts:
        if layout in places:
            found.append(places[layout])
        else:
            places[layout] = len(found)
            found.append([list(layout.shape), [[told_box(box) for box in own] for own in layout.ranges]])
    return found


def heard_layouts(value: Any) -> list[Layout]:
    """Layouts from JSON.  Raises ArgumentError and TransportError."""
    made: list[Layout] = []
    for each in value:
        if isinstance(each, int):
            made.append(made[each])
            continue
        shape, owned = each
        made.append(Layout(shape, [[[slice(*part) for part in box] for box in own] for own in owned]))
    return made
