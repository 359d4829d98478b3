"""A newcomer's way in: it goes to the members' addresses in turn, and waits with one until it is let in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hocket.control.elastic.lobby import Admitted, Asks, Enter, Full, Tells
from hocket.control.elastic.mesh import Mesh
from hocket.control.elastic.reaching import LOBBY, Own, reach
from hocket.control.handshake import Address, AuthError
from hocket.control.link import ControlLink
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.generations import SEAT
from hocket.control.protocol.messages import by_name, pack, unpack
from hocket.control.protocol.seats import name_of
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError, TimeoutError, TransportError

WORDS = by_name(Admitted, Full, Tells)
KNOCK = 1.0
"""Seconds for one attempt at one address."""
ROUND = 0.1
"""Seconds between two rounds over the addresses."""


def enter(mesh: Mesh, addresses: Callable[[], Sequence[Address]], timeout: float) -> Admitted:
    """Wait to be let in, and begin as a member.

    Raises AuthError (another secret, another version), ArgumentError (the job is full), TimeoutError (nobody is
    there, or the members have not let it in: they do so when they call `renew`).
    """
    if len(name_of(mesh.seat)) > SEAT:
        raise ArgumentError(f"info= is too long: a newcomer says at most {SEAT} bytes")
    deadline, last, entered = time.monotonic() + timeout, "no address is known yet", False
    while time.monotonic() < deadline:
        for address in addresses():
            try:
                sock = reach(mesh.own, address, LOBBY, min(KNOCK, max(0.05, deadline - time.monotonic())))
            except AuthError:
                raise
            except TransportError as why:
                last = str(why)
                continue
            entered = True
            answer = _answer(mesh.reactor, sock, Enter(mesh.seat), deadline)
            if isinstance(answer, Full):
                raise ArgumentError(f"the job is full: it has {answer.most} members, which is its limit (most=)")
            if isinstance(answer, Admitted):
                mesh.join(answer)
                return answer
            last = "the member that this process waited with has gone"
        time.sleep(ROUND)
    reason = "the members did not let it in: they do so when all of them call renew()" if entered else last
    raise TimeoutError(f"this process did not become a member of the job within {timeout:g} s: {reason}", [])


def notice(own: Own, addresses: Sequence[Address], timeout: float) -> Any:
    """The notice of the members to those who may come.  Raises AuthError, TransportError (nobody is there)."""
    reactor, deadline = Reactor(), time.monotonic() + timeout
    failed = TransportError("no address is known yet")
    try:
        for address in addresses:
            try:
                sock = reach(own, address, LOBBY, max(0.05, min(KNOCK, deadline - time.monotonic())))
            except AuthError:
                raise
            except TransportError as why:
                failed = why
                continue
            if isinstance(answer := _answer(reactor, sock, Asks(), deadline), Tells):
                return answer.notice
            failed = TransportError("the member that was asked has gone")
        raise failed
    finally:
        reactor.close()


def _answer(reactor: Reactor, sock: Any, word: Enter | Asks, deadline: float) -> Admitted | Full | Tells | None:
    """A member's answer to this word; None: it is gone, or time is over."""
    heard: list[Any] = []
    over = threading.Event()
    link = ControlLink(reactor, sock)

    def take(packed: dict[str, Any]) -> None:
        try:
            heard.append(unpack(packed, WORDS))
        except Malformed:
            heard.append(None)
        over.set()

    link.on_message, link.on_end = take, lambda how: over.set()
    link.send(pack(word))
    reactor.soon(link.start)
    over.wait(max(0.0, deadline - time.monotonic()))
    link.close()
    return heard[0] if heard else None
