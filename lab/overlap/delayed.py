"""A transport on which each message arrives later: the kernel here has no netem.  For ranks of one host.

`declared` makes a folder for PYTHONPATH with which ranks know it as "delayed"; DELAY_US says by how much.  It is that
of docs/transports.md, Unix datagrams in Python, whose heads also say from when on they may be read.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hocket.transports.adapter import Adapter

HEAD = struct.Struct("<QQQ")
"""Tag, length of the message, and when it may be read: CLOCK_MONOTONIC, ns."""
PIECE = 1 << 16


@contextlib.contextmanager
def declared() -> Iterator[str]:
    """The folder."""
    with tempfile.TemporaryDirectory(prefix="hocket-delayed-") as folder:
        about = Path(folder) / "delayed-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: delayed\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[hocket.transports]\ndelayed = {__name__}:Delayed\n")
        yield folder


class _Sender:
    def __init__(self, path: str, delay: int) -> None:
        self.socket, self.path, self.delay = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), path, delay
        self.socket.setblocking(False)

    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        piece = data[:PIECE]
        try:
            self.socket.sendto(HEAD.pack(tag, length, time.monotonic_ns() + self.delay) + piece, self.path)
        except BlockingIOError:
            return None
        except FileNotFoundError as error:  # its reader has closed
            raise ConnectionResetError(str(error)) from None
        return len(piece)


class _Receiver:
    def __init__(self, path: str) -> None:
        self.socket, self.at = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), HEAD.size
        self.piece: bytes | None = None
        self.socket.setblocking(False)
        self.socket.bind(path)

    def peek(self, want: int) -> tuple[int, int, memoryview] | None:
        if self.piece is None:
            try:
                self.piece, self.at = self.socket.recv(HEAD.size + PIECE), HEAD.size
            except BlockingIOError:
                return None
        tag, length, due = HEAD.unpack_from(self.piece)
        return (tag, length, memoryview(self.piece)[self.at :]) if time.monotonic_ns() >= due else None

    def consume(self, count: int, end: bool) -> None:
        assert self.piece is not None
        self.at += count
        if self.at == len(self.piece):
            self.piece = None


class Delayed:
    """The transport."""

    name = "delayed"

    def __init__(self, context: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="hocket-delayed-")
        self.delay = int(os.environ.get("DELAY_US", "1000")) * 1000

    @staticmethod
    def available() -> str | None:
        return None

    def offer(self) -> str:
        return self.folder.name

    def reach(self, offers: Sequence[str | None]) -> list[str | None]:
        return [None if offer and os.path.isdir(offer) else "its folder is not visible here" for offer in offers]

    def channels(self, name: str, index: int, members: Sequence[int]) -> _Channels:
        return _Channels(self.folder.name, name, index, len(members), self.delay)

    def close(self) -> None:
        self.folder.cleanup()


class _Channels:
    def __init__(self, folder: str, name: str, index: int, size: int, delay: int) -> None:
        self.folder, self.name, self.index, self.delay = folder, name, index, delay
        self.senders: list[_Sender] = []
        self.adapters: list[Adapter] = []
        self.receivers = [_Receiver(f"{folder}/{name}-{peer}") for peer in range(size)]

    def offer(self) -> str:
        return self.folder

    def open(self, peer: int, offer: str) -> tuple[Any, Any]:
        sender = _Sender(f"{offer}/{self.name}-{self.index}", self.delay)
        self.senders.append(sender)
        to, of = Adapter(sender), Adapter(self.receivers[peer])
        self.adapters += [to, of]  # an adapter outlives its capsule
        return to.capsule, of.capsule

    def close(self) -> None:
        for each in [*(end.socket for end in self.senders), *(end.socket for end in self.receivers)]:
            each.close()
