"""Messages between GPU memories of one host: the sender copies x into a room of its own, which the receiver has mapped.

A slip goes through the host's channel, matched by its tag as every message is: it names the room.  The sender's copy
has ended when the slip is sent, and the receiver's when it says so, in a message back: then the room is used again.  So
each end waits for its stream, and no byte goes through host memory.

A room is kept mapped while the communicator lasts.  A sender makes another one where none is free for that receiver,
and waits for one where rooms of MOST bytes are taken.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy

from hocket.collectives.arrays.buffers import Buffer
from hocket.collectives.arrays.streams import current_stream
from hocket.collectives.gpu.stream_ops import refuse_capture
from hocket.errors import MemoryError, MismatchError, TransportError
from hocket.system.cuda.driver import Device
from hocket.system.cuda.shared import Mapped, Shared

SLIP = 320
"""Bytes."""
LEAST, MOST = 2 << 20, 256 << 20
"""Bytes of a room, at least; and of all, unless one message has more."""
NEWS = 0.5
"""Seconds in which a rank whose memory cannot be mapped may turn out to be dead."""
_kept: list[Any] = []
"""Rooms that a peer may still have mapped, as it did not say goodbye: kept until the process ends."""


class Slip:
    """The place of a `Buffer` in a message; `then`: what the end of the message does."""

    foreign = True

    def __init__(self, buffer: Buffer, words: dict[str, Any] | None, then: Callable[[dict[str, Any]], None]) -> None:
        self.array = numpy.zeros(SLIP, numpy.uint8)
        self.dtype, self.shape, self.nbytes, self.address = buffer.dtype, buffer.shape, SLIP, self.array.ctypes.data
        self._then: Callable[[dict[str, Any]], None] | None = then
        if words is not None:
            text = json.dumps(words).encode()
            self.array[: len(text)] = numpy.frombuffer(text, numpy.uint8)

    def restore(self) -> None:
        """The message has come."""
        then, self._then = self._then, None
        if then is not None:
            try:
                words = json.loads(self.array.tobytes().rstrip(b"\0"))
            except ValueError:
                raise TransportError("what a peer has sent is not a slip") from None
            then(words)


class Room(Shared):
    """Memory of this GPU for messages to one receiver."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.nbytes, self.taken = nbytes, False


class Rooms:
    """A communicator's.  `ack(rank, number)` tells the sender that its room has been read; `acked(rank, wait)` returns
    the number of a room that a receiver has told so, None: it has told nothing new."""

    def __init__(self, device: Device, rank: int) -> None:
        self.device, self._rank = device, rank
        self._own: dict[int, list[Room]] = {}
        self._theirs: dict[tuple[int, str], Mapped] = {}
        self._process = f"{os.getpid()} {id(self):x}"
        self._lock, self._mapping = threading.Lock(), threading.Lock()

    def post(self, dest: int, x: Buffer, acked: Callable[[int, bool], int | None]) -> Slip:
        """Copy x to where rank `dest` finds it.  MemoryError, and nothing is sent, where there is no room."""
        stream = self._stream(x)
        words: dict[str, Any] = {"nbytes": x.nbytes, "from": self._rank}
        if x.nbytes:
            with self._lock:
                number, room = self._room(dest, x.nbytes, acked)
                room.taken = True
            self.device.copy(room.address, x.address, x.nbytes, stream)
            self.device.synchronize(stream)
            words |= {"room": number, "of": self._process, "handle": room.handle}
        return Slip(x, words, lambda _: None)

    def expect(
        self, out: Buffer, ack: Callable[[int, int], None], fail: Callable[[BaseException], None],
        usable: Callable[[], None],
    ) -> Slip:  # fmt: skip
        """The place of a message that comes into `out`.  `usable` raises when a rank is lost."""

        def then(words: dict[str, Any]) -> None:
            try:
                self._take(words, out)
            except BaseException as error:
                deadline = time.monotonic() + NEWS
                while isinstance(error, TransportError) and time.monotonic() < deadline:
                    usable()
                    time.sleep(0.01)
                fail(error)
                raise
            if words["nbytes"]:
                ack(words["from"], words["room"])

        self._stream(out)
        return Slip(out, None, then)

    def _take(self, words: dict[str, Any], out: Buffer) -> None:
        if words["nbytes"] != out.nbytes:
            sent = f"rank {words['from']} of this communicator sent {words['nbytes']} bytes"
            raise MismatchError(f"recv has room for {out.nbytes} bytes, and {sent}: pass an array of the same size")
        if not out.nbytes:
            return
        if words["of"] == self._process:
            address = self._own[self._rank][words["room"]].address
        else:
            with self._mapping:
                key = words["from"], words["handle"]
                if key not in self._theirs:
                    self._theirs[key] = Mapped(self.device, words["handle"])
                address = self._theirs[key].address
        stream = self._stream(out)
        self.device.copy(out.address, address, out.nbytes, stream)
        self.device.synchronize(stream)

    def collect(self, dest: int, acked: Callable[[int, bool], int | None], wait: bool = False) -> None:
        """Hear which rooms `dest` has read."""
        while (number := acked(dest, wait)) is not None:
            self._own[dest][number].taken, wait = False, False

    @property
    def receivers(self) -> list[int]:
        """The ranks that have not said yet that they have read all."""
        return [dest for dest, rooms in self._own.items() if any(room.taken for room in rooms)]

    def _room(self, dest: int, nbytes: int, acked: Callable[[int, bool], int | None]) -> tuple[int, Room]:
        rooms = self._own.setdefault(dest, [])
        while True:
            self.collect(dest, acked)
            free = [number for number, room in enumerate(rooms) if not room.taken and room.nbytes >= nbytes]
            if free:
                number = min(free, key=lambda each: rooms[each].nbytes)
                return number, rooms[number]
            capacity = max(LEAST, 1 << (nbytes - 1).bit_length())
            in_all = sum(room.nbytes for each in self._own.values() for room in each)
            if in_all + capacity <= MOST or not any(room.taken for room in rooms):
                break
            self.collect(dest, acked, wait=True)
        try:
            rooms.append(Room(self.device, capacity))
        except TransportError as why:
            what = f"no room for {capacity} bytes on {self.device}, by which a message goes ({why})"
            raise MemoryError(what) from None
        return len(rooms) - 1, rooms[-1]

    def _stream(self, buffer: Buffer) -> int:
        stream = current_stream(buffer.array, self.device.ordinal)
        refuse_capture(self.device, stream)
        return stream

    def unmap(self) -> None:
        """Let go of the peers' rooms."""
        for each in self._theirs.values():
            each.close()
        self._theirs.clear()

    def close(self, clean: bool) -> None:
        """Free our own.  `clean`: all peers have let go of them."""
        self.unmap()
        for rooms in self._own.values():
            for room in rooms:
                room.close() if clean else _kept.append(room)
        self._own.clear()
