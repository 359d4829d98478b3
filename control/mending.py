"""A rank's broken control connection is made again, by the rank; the coordinator can only ask it to.

Both go to the listener of the other one's tcp transport, by a `Redialer`.  It tells a broken connection from a dead
process: where nobody listens any more, the process has ended.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from hocket.control.handshake import ATTEMPT
from hocket.control.link import GONE, ControlLink
from hocket.control.reactor import Reactor
from hocket.errors import TransportError

REFUSED = 0.04
"""Seconds in which a host says that nobody listens, until the process is believed to have ended."""
PAUSE = 0.01, 0.25
"""Seconds between two attempts, at first and at most."""
ANSWERED = 1.0
"""Seconds in which a rank that was asked comes."""
BY_ITSELF = 0.02
"""Seconds in which it comes unasked: to be asked behind that would break the new connection, too."""
SILENT = GONE[errno.ETIMEDOUT]


class Redialer(Protocol):
    """A way to another rank's process.  Both may wait for so many seconds, and raise TransportError."""

    def control_again(self, rank: int, seconds: float, look: Callable[[], object]) -> socket.socket:
        """A new connection, proven."""

    def control_ask(self, rank: int, seconds: float, look: Callable[[], object]) -> None:
        """Ask for one."""


class Unneeded(Exception):
    """Nobody needs it any more."""


class Mending:
    """The mending of one link, to `rank`.  dials: is it made by this end?"""

    def __init__(self, reactor: Reactor, link: ControlLink, way: Redialer, rank: int, dials: bool) -> None:
        self._reactor, self._link, self._way, self._rank, self._dials = reactor, link, way, rank, dials
        link.on_break = self._begin

    def _begin(self, how: str, silent: float) -> bool:
        """A host that is silent has used up most of its limit by now: what is left of it is enough for one attempt."""
        left = max(PAUSE[1], self._reactor.lost_after - silent)
        mend = partial(self._mend, how, time.monotonic() + left, self._link.connections)
        self._reactor.later(0.0 if self._dials else BY_ITSELF, lambda: self._reactor.aside("mend", mend))
        return True

    def _mend(self, how: str, deadline: float, broken: int) -> None:
        """Until connection number `broken` has been made again, the link is closed, or the peer is lost."""
        refused, pause = 0.0, PAUSE[0]
        look = partial(self._look, broken)
        while True:
            seconds = min(ATTEMPT, deadline - time.monotonic())
            try:
                look()
                if self._dials:
                    sock = self._way.control_again(self._rank, seconds, look)
                    self._reactor.soon(partial(self._link.again, sock))
                    return
                self._way.control_ask(self._rank, seconds, look)
                until = time.monotonic() + ANSWERED
                while time.monotonic() < until:
                    look()
                    time.sleep(0.005)
                refused = 0.0
            except Unneeded:
                return
            except TransportError as why:
                now, gone = time.monotonic(), why.errno == errno.ECONNREFUSED
                refused = (refused or now) if gone else 0.0
                if refused and now - refused > REFUSED:
                    self._reactor.soon(partial(self._ends, broken, how))
                    return
            if time.monotonic() > deadline:
                lost = SILENT if how == SILENT else f"{how}; it could not be made again"
                self._reactor.soon(partial(self._ends, broken, lost))
                return
            time.sleep(pause)
            pause = PAUSE[0] if refused else min(2 * pause, PAUSE[1])

    def _ends(self, broken: int, how: str) -> None:
        if self._link.connections == broken:
            self._link.end(how)

    def _look(self, broken: int) -> None:
        """It may break again soon: then somebody else mends it, with a limit of its own."""
        if not self._link.open or self._link.connections != broken or self._reactor.dead:
            raise Unneeded
