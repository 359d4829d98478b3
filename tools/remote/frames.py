"""The words between `hocket run` and its agents: frames on the agent's standard input and output.

    length of the body (4 bytes), kind (1), rank (4), body

A body is JSON, or bytes of a program's input or output.  Before its first frame an agent says MAGIC, as login shells
may print something before it.  No I/O here.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from typing import Any

MAGIC = b"\0hocket agent 1\n"
HEAD = struct.Struct("!IBI")
MOST = 1 << 26
"""Bytes of a body: more is no frame, but something else that talks."""
PULSE = 1.0
"""Seconds between signs of life, both ways."""
LOST = 7.0
"""Seconds of silence after which the other end is taken for dead: nothing is left 10 s after a network has died."""


class FrameKind(enum.IntEnum):
    """L: said by the launcher; A: said by the agent."""

    PULSE = 0  # both
    HELLO = 1  # A: its version, its host's name and addresses
    BEGIN = 2  # L: all but the secret: program, folder, variables, ranks
    ASK = 3  # L, to rank 0's host: which address of yours leads to these?
    WHERE = 4  # A: this one, and free ports
    START = 5  # L: the secret, and where the ranks meet
    STARTED = 6  # A: the pid of a rank
    OUTPUT, ERRORS = 7, 8  # A: what a rank wrote
    INPUT = 9  # L: for rank 0's standard input; empty: its end
    READ = 10  # A: so many bytes of it have been taken
    SIGNAL = 11  # L: for a rank
    ENDED = 12  # A: a rank's exit code and last words
    LOOK = 13  # L: tell from now on which ranks meet or are ending
    SEEN = 14  # A: of a rank
    REFUSED = 15  # A: why it cannot start the ranks, and the exit code for that
    FINISH = 16  # L: all ranks have ended: send what is left of their output, and end
    PAUSE = 17  # L: no sign of life will come until the next frame does (Ctrl-Z)


def packed(kind: FrameKind, rank: int = 0, body: bytes | Any = b"") -> bytes:
    """A frame.  What is no bytes becomes JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HEAD.pack(len(data), kind, rank) + data


class Frames:
    """Takes bytes as they come, and gives whole frames.  `skip`: all before MAGIC is no frame."""

    def __init__(self, skip: bool = False) -> None:
        self._held = bytearray()
        self._skip = skip
        self.noise = b""
        """The end of what came before MAGIC."""

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, int, bytes]]:
        """ValueError: these are no frames."""
        self._held += data
        if self._skip:
            before, found, rest = bytes(self._held).partition(MAGIC)
            if not found:
                self._held = self._held[-4096:]
                self.noise = bytes(self._held)
                return
            self._skip, self._held, self.noise = False, bytearray(rest), before[-4096:]
        while len(self._held) >= HEAD.size:
            length, kind, rank = HEAD.unpack_from(self._held)
            if length > MOST:
                raise ValueError("no frame")
            if len(self._held) < HEAD.size + length:
                return
            body = bytes(self._held[HEAD.size : HEAD.size + length])
            del self._held[: HEAD.size + length]
            yield FrameKind(kind), rank, body
