"""A control connection: JSON objects, each behind its length in 4 bytes, on the reactor.

Used after the handshake only; a message is at most 16 MiB.  Knows nothing of what the messages mean.
"""

from __future__ import annotations

import errno
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

from hocket.errors import ArgumentError
from hocket.transports.reactor import Reactor

LIMIT = 16 << 20
LENGTH = struct.Struct("!I")
Message = dict[str, Any]

# A vanished host is noticed in about 5 s.  TCP_USER_TIMEOUT counts and TCP_KEEPCNT does not where both are given; with
# 1500 ms living jobs ended in a lossy network (tests/guest/test_weather.py).  Control connections only: on one that
# carries data, TCP_USER_TIMEOUT kills a living peer that is merely slow to read.
ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4500),
)
GONE = {errno.ETIMEDOUT: "its host does not answer (control connection timed out)"}
ENDED = "its process ended (control connection closed)"


def encode(message: Message) -> bytes:
    try:
        body = json.dumps(message, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as why:
        raise ArgumentError(f"a control message must be JSON: {why}") from None
    if len(body) > LIMIT:
        raise ArgumentError(f"a control message of {len(body)} bytes: at most {LIMIT} are allowed")
    return LENGTH.pack(len(body)) + body


class Link:
    """Sends from any thread; calls `on_message(message)` and, once, `on_end(how)` on the reactor's thread.

    After `close` neither is called.  `start` begins reading.
    """

    def __init__(self, reactor: Reactor, sock: socket.socket) -> None:
        self.on_message: Callable[[Message], object] = lambda message: None
        self.on_end: Callable[[str], object] = lambda how: None
        self._reactor, self._sock, self._open = reactor, sock, True
        self._in, self._out = bytearray(), bytearray()
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            for level, option, value in ALIVE:
                sock.setsockopt(level, option, value)

    @property
    def local_address(self) -> str | None:
        """The IP address of this end; None for a Unix socket."""
        return None if self._sock.family == socket.AF_UNIX else str(self._sock.getsockname()[0])

    def start(self) -> None:
        self._reactor.add(self._sock, self._readable)

    def send(self, message: Message) -> None:
        self.post(encode(message))

    def post(self, data: bytes) -> None:
        """Send what `encode` made."""
        self._reactor.soon(lambda: self._push(data))

    def close(self) -> None:
        """Close when what was sent before has reached the system, or in a second if the peer does not read."""
        self._reactor.soon(self._close)

    def _close(self) -> None:
        self._open = False
        if self._out:
            self._reactor.later(1.0, lambda: self._reactor.remove(self._sock, close=True))
        else:
            self._reactor.remove(self._sock, close=True)

    def _push(self, data: bytes) -> None:
        if self._open:
            self._out += data
            self._writable()

    def _writable(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()  # the end is told by the reading side, after what the peer said last
        if self._out or self._open:
            self._reactor.add(self._sock, self._readable, self._writable if self._out else None)
        else:
            self._reactor.remove(self._sock, close=True)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as why:
            self._end(GONE.get(why.errno or 0, ENDED))
            return
        if not data:
            self._end(ENDED)
            return
        if not self._open:
            return  # only waiting for the last of our own words to go out
        self._in += data
        try:
            self._parse()
        except (ValueError, RecursionError):
            self._end("it sent what is not a control message")

    def _parse(self) -> None:
        while self._open and len(self._in) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._in)
            if size > LIMIT:
                raise ValueError(size)
            if len(self._in) < LENGTH.size + size:
                return
            message = json.loads(self._in[LENGTH.size : LENGTH.size + size])
            del self._in[: LENGTH.size + size]
            if not isinstance(message, dict):
                raise ValueError(message)
            self._reactor.guard(lambda m=message: self.on_message(m))  # type: ignore[misc]

    def _end(self, how: str) -> None:
        told, self._open = not self._open, False
        self._reactor.remove(self._sock, close=True)
        if not told:
            self.on_end(how)
