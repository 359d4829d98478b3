"""The handle of a push or a pull that was begun, and its parts that have not ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hocket.errors import ArgumentError
from hocket.training.server.shards.packing import ALL, as_bytes, unpacked
from hocket.training.server.wire.frames import codec
from hocket.training.server.wire.link import SharedLink


class Handle:
    """A push or pull under way.  `wait()` returns the result: a pull's array; None of a push.

    `ended`: parts of it (slices, or a shard's rows) that have ended, in that order; of a pull they are in the result.
    """

    __slots__ = ("_wait", "count", "ended", "first", "result", "ways", "why")

    def __init__(self, result: Any, wait: Callable[[Handle, int, float | None], None]) -> None:
        self.result, self._wait = result, wait
        self.first: Handle | None = None
        """The push before a pull that was begun with it."""
        self.count = 0
        """Its parts."""
        self.ways: list[Any] = []
        """The `Way` of each part that has not ended."""
        self.ended: list[tuple[int, int]] = []
        self.why = ""
        """The first part that was refused."""

    def begin(self, way: Any) -> None:
        """Count one more part, on this way."""
        self.count += 1
        self.ways.append(way)

    def end(self, way: Any, part: tuple[int, int], why: str) -> None:
        """A part has ended."""
        self.why = self.why or why
        self.ways.remove(way)
        self.ended.append(part)

    def has(self, count: int) -> bool:
        """Have so many of its parts ended, or was one refused?"""
        return len(self.ended) >= count or bool(self.why)

    def done(self) -> bool:
        """Has all of it ended?  Never waits."""
        return len(self.ended) == self.count

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it has ended.  Raises ArgumentError (the server has refused it), TimeoutError, PeerLostError."""
        if self.first is not None:
            self.first.wait(timeout)
        self._wait(self, self.count, timeout)
        if self.why:
            raise ArgumentError(self.why)
        return self.result

    def parts(self) -> Iterator[tuple[int, int]]:
        """The parts of a `Range`, as (first element, end), each as soon as it has ended."""
        seen = 0
        while seen < self.count:
            self._wait(self, seen + 1, None)
            if self.why:
                raise ArgumentError(self.why)
            yield self.ended[seen]
            seen += 1


class OpenPart(NamedTuple):
    """A part of a push or pull that has not ended."""

    handle: Handle | None
    part: tuple[int, int]
    nbytes: int
    room: Any = None
    """An array; a dictionary for all that there is of slices, by their first elements."""
    where: Any = None
    """The places of rows: their places in `room`."""
    codec: int = 0
    alone: bool = False
    """Nobody waits for it yet."""
    undo: Callable[[], None] | None = None
    """Called if a push was refused."""


def take_answer(link: SharedLink, entry: OpenPart | None, nbytes: int) -> None:
    """Receive the answer to this pull into the caller's memory; None: nobody wants it any more."""
    if entry is None or entry.room is None:
        link.payload(nbytes, reuse=True)
    elif entry.codec == ALL:
        entry.room[entry.part[0]] = unpacked(link.payload(nbytes))
    elif entry.where is None and not entry.codec:
        link.into(as_bytes(entry.room))
    else:
        payload, with_codec = link.payload(nbytes, reuse=True), codec(entry.codec)
        assert payload is not None
        count = entry.room.size if entry.where is None else entry.where.size * entry.room.shape[1]
        values = payload.view(entry.room.dtype) if with_codec is None else with_codec.decode(payload, count)
        if entry.where is None:
            entry.room[...] = values
        else:
            entry.room[entry.where] = values.reshape(entry.where.size, -1)
