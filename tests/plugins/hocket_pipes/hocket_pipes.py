"""A transport of another package: named pipes between the processes of a host, in pure Python.

Each rank reads from pipes in a directory of its own, one for each lane and peer.  Slow, and complete.

    python -m hocket.conformance hocket_pipes:PipesTransport
    HOCKET_TRANSPORT=pipes hocket bench allreduce -n 2 --check
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Sequence
from typing import Any

from hocket.transports.adapter import Adapter
from hocket.transports.base import Context

HEADER = struct.Struct("<QQ")  # tag, length


class Writer:
    def __init__(self, fd: int) -> None:
        self.fd, self.begun = fd, False

    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        try:
            if done == 0 and not self.begun:
                os.write(self.fd, HEADER.pack(tag, length))  # shorter than PIPE_BUF: whole or not at all
                self.begun = True
            taken = os.write(self.fd, data) if data else 0
        except BlockingIOError:
            return None
        self.begun = done + taken < length
        return taken


class Reader:
    def __init__(self, fd: int) -> None:
        self.fd, self.stage, self.head, self.left, self.met = fd, bytearray(), (0, 0), -1, False

    def _has(self, count: int) -> bool:
        if len(self.stage) < count:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return False
            if not data and self.met:
                raise ConnectionResetError("the peer closed its pipe")
            self.met = self.met or bool(data)  # empty before the first byte: it has not opened the pipe yet
            self.stage += data
        return len(self.stage) >= count

    def peek(self, want: int) -> tuple[int, int, bytes] | None:
        if self.left < 0:
            if not self._has(HEADER.size):
                return None
            self.head = HEADER.unpack(self.stage[: HEADER.size])
            self.left = self.head[1]
            del self.stage[: HEADER.size]
        self._has(min(want, self.left))
        return (*self.head, bytes(self.stage[: self.left]))

    def consume(self, count: int, end: bool) -> None:
        del self.stage[:count]
        self.left = -1 if end else self.left - count


class PipesTransport:
    name = "pipes"

    def __init__(self, context: Context) -> None:
        self.context, self.directory = context, tempfile.mkdtemp(prefix="hocket-pipes-")

    @staticmethod
    def available() -> str | None:
        return None if hasattr(os, "mkfifo") else "this system has no named pipes"

    def offer(self) -> str:
        return self.directory

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        return [None if offer and os.path.isdir(offer) else "its pipes are not visible here" for offer in offers]

    def lane(self, name: str, index: int, members: Sequence[int]) -> PipesLane:
        return PipesLane(self.directory, name, index, len(members))

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class PipesLane:
    def __init__(self, directory: str, name: str, index: int, size: int) -> None:
        self.directory, self.name, self.index, self.size = directory, name, index, size
        self.readers: dict[int, Reader] = {}
        self.adapters: list[Adapter] = []  # alive as long as the channels
        self.fds: list[int] = []

    def _open(self, directory: str, source: int, flag: int) -> int:
        self.fds.append(os.open(f"{directory}/{self.name}-{source}", flag | os.O_NONBLOCK))
        return self.fds[-1]

    def offer(self) -> str:
        for peer in range(self.size):
            os.mkfifo(f"{self.directory}/{self.name}-{peer}", 0o600)
            self.readers[peer] = Reader(self._open(self.directory, peer, os.O_RDONLY))
        return self.directory

    def open(self, peer: int, offer: str) -> tuple[Any, Any]:
        to, of = Adapter(Writer(self._open(offer, self.index, os.O_WRONLY))), Adapter(self.readers[peer])
        self.adapters += [to, of]
        return to.capsule, of.capsule

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())
