"""The answer of a listener to who wants a broken connection made again: what there is, and how much of it has come.

Proven by the new connection's own key, so that what was said on another one, or is altered, is nobody's.
"""

from __future__ import annotations

import hmac
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from hocket.control.handshake import Connection, prove
from hocket.errors import TransportError

ANSWER = struct.Struct("!cQ")
PROOF = 16
HERE, IDLE, CLOSED = b"+", b"0", b"-"
"""There is such a stream; it is made again when there is something to send; there is none any more."""


def _word(link: Connection, what: bytes, count: int) -> bytes:
    body = ANSWER.pack(what, count)
    return body + prove(link.key, b"resume", body)[:PROOF]


def say(end: Any, link: Connection, what: bytes, count: int) -> bool:
    """Over `end`, which is `link` or a Tls over it.  False: it does not take it."""
    word = _word(link, what, count)
    try:
        sent = end.send(word) if isinstance(end, socket.socket) else end.write(word)
        return bool(sent == len(word))
    except OSError:
        return False


def answer(
    end: Any, link: Connection, deadline: float, look: Callable[[], object] = lambda: None
) -> tuple[bytes, int]:
    """Wait for it; `look` may raise to end the wait.  TransportError: none has come, or one that is not proven."""
    data, wanted = b"", ANSWER.size + PROOF
    poll = select.poll()
    poll.register(link, select.POLLIN)
    link.setblocking(False)
    while len(data) < wanted:
        try:
            more = end.recv(wanted - len(data)) if isinstance(end, socket.socket) else end.read(wanted - len(data))
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TransportError("the other side does not say what it has") from None
            poll.poll(100)
            look()
            continue
        if not more:
            raise TransportError("the other side closed the connection and did not say what it has")
        data += more
    what, count = ANSWER.unpack_from(data)
    if len(data) > wanted or not hmac.compare_digest(data, _word(link, what, count)):
        raise TransportError("what the other side says to have is not proven: somebody is in between")
    return what, count
