"""The reference transport: the shortest one, in pure Python, between threads of one process.

For whoever writes the next: it does what channel.h asks for and nothing else, and passes the same conformance tests
as shm and tcp.  Slow (each call takes the GIL), and it reaches only ranks in the same process (`local_world`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from hocket.transports.adapter import Adapter
from hocket.transports.base import Traits

ROOM = 1 << 16
"""Bytes that a pipe holds: bounded, like every real transport's memory."""
PIECES = 1024
"""Pieces that it holds: empty messages are bounded too."""


class Pipe:
    """One direction: messages cut into pieces of at most ROOM bytes.  A `PyChannel` at both ends."""

    def __init__(self) -> None:
        self.pieces: deque[tuple[int, int, bytes]] = deque()
        self.held = 0
        self.lock = threading.Lock()

    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        with self.lock:
            if len(self.pieces) >= PIECES or (self.held + len(data) > ROOM and self.held >= ROOM // 2):
                return None
            piece = bytes(data[:ROOM])
            self.pieces.append((tag, length, piece))
            self.held += len(piece)
            return len(piece)

    def peek(self, want: int) -> tuple[int, int, bytes] | None:
        with self.lock:
            return self.pieces[0] if self.pieces else None

    def consume(self, count: int, end: bool) -> None:
        with self.lock:
            tag, length, piece = self.pieces.popleft()
            self.held -= count
            if count < len(piece):
                self.pieces.appendleft((tag, length, piece[count:]))


class Exchange:
    """Where the ranks of one process find each other's pipes."""

    def __init__(self) -> None:
        self.pipes: dict[tuple[str, int, int], Pipe] = {}
        self.lock = threading.Lock()

    def pipe(self, name: str, source: int, dest: int) -> Pipe:
        with self.lock:
            return self.pipes.setdefault((name, source, dest), Pipe())


class ReferenceTransport:
    """Pipes between the ranks of one process."""

    name = "reference"
    traits = Traits(needs_gil=True)

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        self.rank, self.size, self.exchange = rank, size, exchange

    @staticmethod
    def available() -> str | None:
        return None

    def offer(self) -> None:
        return None

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        return [None] * self.size

    def channels(self, name: str, index: int, members: Sequence[int]) -> ReferenceChannels:
        return ReferenceChannels(self.exchange, name, self.rank, members)

    def close(self) -> None:
        self.exchange.pipes.clear()


class ReferenceChannels:
    """The pipes of one communicator."""

    def __init__(self, exchange: Exchange, name: str, rank: int, members: Sequence[int]) -> None:
        self.exchange, self.name, self.rank, self.members = exchange, name, rank, members
        self.adapters: list[Adapter] = []  # alive as long as the channels

    def offer(self) -> None:
        return None

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        other = self.members[peer]
        ends = (self.exchange.pipe(self.name, self.rank, other), self.exchange.pipe(self.name, other, self.rank))
        to, of = (Adapter(pipe) for pipe in ends)
        self.adapters += [to, of]
        return to.capsule, of.capsule

    def close(self) -> None:
        pass
