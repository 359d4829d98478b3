"""A control connection: JSON objects on the reactor, each behind its length in 4 bytes and its proof in 16.

The proof is HMAC(the direction's key, number of the message | SHA-256 of its body), cut to 16 bytes; both keys come
from the connection's own (handshake.Connection).  It is compared before anything is parsed, so somebody in between can
end the connection, but cannot alter, repeat, swap, leave out or reflect a message.  A Unix socket for which the
user id was the proof, and a pair of sockets inside a process, have no key and no proofs.
Used after the handshake only; a message is at most 16 MiB.  Knows nothing of what the messages mean.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from hocket.control.handshake import Connection, prove
from hocket.control.protocol.kept import ResendQueue
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError, TransportError
from hocket.system.machine import numeric, tcp_info, wish

LIMIT = 16 << 20
LENGTH = struct.Struct("!I")
NUMBER = struct.Struct("!Q")
PROOF = 16
Message = dict[str, Any]

TCP_RTO_MAX_MS = 44  # of Linux 6.15: what is sent again is sent each second, also after a long silence
MOST_PROBES = 127  # that the system sends
UNKNOWN = 0xFFFFFFFF
"""The shortest round trip, as the kernel tells it before there was any."""
QUIET, ANSWERS = 1.5, 1.0
"""Seconds without a sign of the other system, which is asked each second, that are no chance; in which it answers."""


def alive(after: float) -> list[tuple[int, int, int]]:
    """Options by which a vanished host is noticed in `after` seconds.

    TCP_USER_TIMEOUT counts and TCP_KEEPCNT does not where both are given; with
    1500 ms living jobs ended in a lossy network (tests/guest/test_weather.py).  Where the system refuses
    it (MPTCP), TCP_KEEPCNT counts.  Control connections only: on one that
    carries data, TCP_USER_TIMEOUT kills a living peer that is merely slow to read.
    """
    ends = after < LONGEST
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1 if after <= MOST_PROBES else 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, min(round(after), MOST_PROBES)),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * after - 500) if ends else 0),
        (socket.IPPROTO_TCP, TCP_RTO_MAX_MS, 1000),
    ]


LONGEST = 2e6
"""Seconds that the system's milliseconds can count; more is without a limit."""
UNREACHED = "its host cannot be reached any more: the network between the hosts broke (control connection: {})"
GONE = {
    errno.ETIMEDOUT: "its host does not answer (control connection timed out)",
    **{
        number: UNREACHED.format(os.strerror(number))
        for number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ENETRESET)
    },
}
CUT = "the connection to it broke: the process has ended, or something between the hosts cut it ({})"
ENDED = "its process ended (control connection closed)"
NONSENSE = "it sent bytes that are not a control message"
HAS = "has"
"""The one key of the message that says how many have come (protocol/kept.py)."""
OVER = "over"
"""The one key of the message that says why the other end, that was asked to go on with another connection, does not."""
ALTERED = "a control message with a wrong MAC came: somebody between the ranks alters messages"


class Altered(Exception):
    """A message came with another proof than its place in this connection needs."""


class PackedMessage(NamedTuple):
    """A message as it travels; its digest is computed once for all receivers."""

    body: bytes
    digest: bytes


class Seal:
    """Proves the messages of one direction, each in its place."""

    def __init__(self, key: bytes, label: bytes) -> None:
        self._key, self._number = prove(key, label, b""), 0

    def next(self, digest: bytes) -> bytes:
        """The proof of the next message."""
        proof = hmac.digest(self._key, NUMBER.pack(self._number) + digest, "sha256")[:PROOF]
        self._number += 1
        return proof


def encode(message: Message) -> PackedMessage:
    try:
        body = json.dumps(message, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as why:
        raise ArgumentError(f"a control message must be JSON: {why}") from None
    if len(body) > LIMIT:
        raise ArgumentError(f"a control message of {len(body)} bytes: at most {LIMIT} are allowed")
    return PackedMessage(body, hashlib.sha256(body).digest())


def seals(sock: socket.socket) -> tuple[Seal | None, Seal | None]:
    """The seals of what we send and of what we get."""
    if not isinstance(sock, Connection) or not sock.key:
        return None, None
    client, server = Seal(sock.key, b"from the client"), Seal(sock.key, b"from the server")
    return (client, server) if sock.dialled else (server, client)


class Once:
    """Encodes what goes to several ranks once.  It knows messages by their identity: they must outlive it."""

    def __init__(self, encoded: Callable[[Any], PackedMessage]) -> None:
        self._encoded, self._ready = encoded, dict[int, PackedMessage]()

    def __call__(self, message: Any) -> PackedMessage:
        key = id(message)
        if key not in self._ready:
            self._ready[key] = self._encoded(message)
        return self._ready[key]


class ControlLink:
    """Sends from any thread; calls `on_message(message)` and, once, `on_end(how)` on the reactor's thread.

    After `close` neither is called.  `start` begins reading.
    """

    def __init__(self, reactor: Reactor, sock: socket.socket) -> None:
        self.on_message: Callable[[Message], object] = lambda message: None
        self.on_end: Callable[[str], object] = lambda how: None
        self.most = LIMIT
        """Bytes of a message that comes."""
        self._reactor, self._sock, self._open = reactor, sock, True
        self._in, self._out = bytearray(), bytearray()
        self._kept: ResendQueue[PackedMessage] | None = None
        self.on_break: Callable[[str, float], bool] = lambda how, silent: False
        """Called when the connection is broken: how, and for how many seconds the other host was silent.  Will there be
        another one (`again`, or `end`)?"""
        self.broken, self.connections = False, 1
        """The latter: so many there have been."""
        self._broke = 0
        """The error that sending met: the system tells it once."""
        self._doubts = False
        self._ours, self._theirs = seals(sock)
        self.key: bytes = getattr(sock, "key", None) or b""
        """The connection's own; none where a Unix socket or TLS tells who is at the other end."""
        self.local_address = None if sock.family == socket.AF_UNIX else numeric(sock.getsockname())
        """The IP address of this end, also when it has ended; None for a Unix socket."""
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            self._last_long()

    def _last_long(self) -> None:
        for level, option, value in alive(self._reactor.lost_after):
            wish(self._sock, level, option, value)

    def keep(self) -> None:
        """Keep what is sent until the other end, which does the same, has it.  Before anything is sent."""
        if self._sock.family != socket.AF_UNIX:
            self._kept = ResendQueue()

    def again(self, sock: socket.socket) -> None:
        """Go on over another connection; on the reactor's thread."""
        if not self._open or self._kept is None:
            sock.close()
            return
        self._reactor.remove(self._sock, close=True)
        self._sock, self._broke, self.broken = sock, 0, False
        self.connections += 1
        self._in.clear()
        self._out.clear()
        self._ours, self._theirs = seals(sock)
        sock.setblocking(False)
        self._last_long()
        self._kept.begins()
        self._put(encode({HAS: self._kept.says()}))
        self.start()

    def start(self) -> None:
        if self._open:  # or it was closed before it began: its peer's job may have ended meanwhile
            self._reactor.add(self._sock, self._readable)
            self._reactor.soon(partial(self._early, self._sock))

    def _early(self, sock: socket.socket) -> None:
        """A message that came with the last of an encrypted handshake lies here already: `select` does not see it."""
        if self._open and not self.broken and self._sock is sock:
            self._readable()

    def send(self, message: Message) -> None:
        self.post(encode(message))

    def post(self, packed: PackedMessage) -> None:
        """Send what `encode` made."""
        self._reactor.soon(lambda: self._push(packed))

    def close(self) -> None:
        """Close when what was sent before has reached the system, or in a second if the peer does not read."""
        self._reactor.soon(self._close)

    def _close(self) -> None:
        self._open = False
        if self._out:
            self._reactor.later(1.0, lambda: self._reactor.remove(self._sock, close=True))
        else:
            self._reactor.remove(self._sock, close=True)

    def _push(self, packed: PackedMessage) -> None:
        if not self._open:
            return
        try:
            if self._kept is None or (self._kept.sends(packed) and not self.broken):
                self._put(packed)
        except OverflowError:
            self.end(CUT.format("it has not said for long what it got"))

    def _put(self, packed: PackedMessage) -> None:
        proof = self._ours.next(packed.digest) if self._ours else b""
        self._out += LENGTH.pack(len(packed.body)) + proof + packed.body
        self._writable()
        if not self._doubts and (silent := _silent(self._sock)) > QUIET:
            self._doubts = True
            self._reactor.later(max(ANSWERS, self._reactor.lost_after - silent), self._judge)

    def _judge(self) -> None:
        """Has its host been silent for the limit?  The system does not say: bytes that are sent in a silence begin its
        count anew."""
        self._doubts = False
        if self._open and not self.broken and (silent := _silent(self._sock)) >= self._reactor.lost_after - 0.5:
            self._breaks(GONE[errno.ETIMEDOUT], silent)

    def _writable(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as why:
            self._broke = why.errno or 0
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
        except TransportError as why:
            self._end(f"its control connection was {why}")
            return
        except OSError as why:
            here = self._sock.family == socket.AF_UNIX  # there nothing is between the two processes
            self._breaks(ENDED if here else GONE.get(why.errno or 0, CUT.format(why.strerror)), _silent(self._sock))
            return
        if not data:
            self._breaks(GONE.get(self._broke, ENDED), _silent(self._sock))
            return
        if not self._open:
            return  # only waiting for the last of our own words to go out
        self._in += data
        try:
            self._parse()
        except Altered:
            self._end(ALTERED)
        except (ValueError, TypeError, RecursionError):
            self._end(NONSENSE)

    def _parse(self) -> None:
        head = LENGTH.size + (PROOF if self._theirs else 0)
        while self._open and len(self._in) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._in)
            if size > self.most:
                raise ValueError(size)
            if len(self._in) < head + size:
                return
            proof, body = bytes(self._in[LENGTH.size : head]), bytes(self._in[head : head + size])
            del self._in[: head + size]
            if self._theirs and not hmac.compare_digest(proof, self._theirs.next(hashlib.sha256(body).digest())):
                raise Altered
            message = json.loads(body)
            if not isinstance(message, dict):
                raise ValueError(message)
            if self._kept is not None and message.keys() == {HAS}:
                for packed in self._kept.has(int(message[HAS])):
                    self._put(packed)
                continue
            if self._kept is not None and message.keys() == {OVER}:
                self._end(str(message[OVER]))
                return
            if self._kept is not None and self._kept.gets():
                self._put(encode({HAS: self._kept.says()}))
            self._reactor.guard(lambda m=message: self.on_message(m))  # type: ignore[misc]

    def _breaks(self, how: str, silent: float) -> None:
        if self._open and self._kept is not None and not self.broken and self.on_break(how, silent):
            self.broken = True
            self._reactor.remove(self._sock, close=True)
        elif not self.broken:
            self._end(how)

    def ask(self) -> None:
        """The other end has lost the connection: this one is broken, too.  On the reactor's thread."""
        self._breaks(CUT.format("the other end says so"), silent=0.0)

    def end(self, how: str) -> None:
        """There will be no other connection.  On the reactor's thread."""
        self._end(how)

    @property
    def open(self) -> bool:
        return self._open

    @property
    def round_trip(self) -> float:
        """Seconds of the shortest one so far, as the system has measured; 0: it has not, or there is no network."""
        microseconds = tcp_info(self._sock.fileno()).get("min_rtt", UNKNOWN)
        return microseconds / 1e6 if microseconds != UNKNOWN else 0.0

    def _end(self, how: str) -> None:
        closed, self._open = not self._open, False
        self._reactor.remove(self._sock, close=True)
        if not closed:
            self.on_end(how)


def _silent(sock: socket.socket) -> float:
    """Seconds since anything came from the other host, an acknowledgement or bytes; 0 where that is not known."""
    info = tcp_info(sock.fileno())
    return min(info.get("last_data_recv", 0), info.get("last_ack_recv", 0)) / 1000
