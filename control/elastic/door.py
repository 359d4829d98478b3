"""The listener that each member keeps: other members come to it, newcomers, and those that meet a generation's rank 0.

Everything runs on the reactor's thread.
"""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from hocket.control import encryption
from hocket.control.elastic.lobby import Asks, Enter
from hocket.control.elastic.reaching import LOBBY, PEER, Own
from hocket.control.handshake import Connection, Hello
from hocket.control.link import ControlLink
from hocket.control.links import Links
from hocket.control.listener import Listener
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.membership import AGAIN
from hocket.control.protocol.membership import PURPOSE as MEETING
from hocket.control.protocol.messages import by_name, unpack
from hocket.control.reactor import Reactor

log = logging.getLogger("hocket.control")
FIRST_WORD = 5.0
"""Seconds in which a proven connection says whose it is, and in which one to a generation that has not begun waits."""
FIRST_BYTES = 32 << 10
"""Bytes of that word."""
MEETINGS = 4
"""Generations that met here, and are answered yet."""
SILENT, PARKED = 256, 1024
"""Connections that have not said it, and that wait for a generation; the oldest gives way."""
Take = Callable[[Connection, Hello], object]


class Iam(NamedTuple):
    """Whose connection this is."""

    uid: str
    proof: str = ""
    """That it is, to the process at the other end of this connection (proving.py)."""


FIRST = {PEER: by_name(Iam), LOBBY: by_name(Enter, Asks)}
"""First words, by what the connection is for: a process that comes to the lobby is no member."""


class Door:
    """Calls `arrived(word, link)` with what a proven connection says first."""

    def __init__(self, reactor: Reactor, own: Own, arrived: Callable[[Any, ControlLink], object]) -> None:
        self.meeting: tuple[str, Links] | None = None
        """The generation that meets here, if this process is its rank 0."""
        self._reactor, self._own, self._arrived = reactor, own, arrived
        self._job = Hello(0, PEER, own.job).job
        self._takes: dict[str, Take] = {}
        """For the latest generations that met here: who comes for one that is over hears that it is."""
        self._parked: list[tuple[Connection, Hello]] = []
        self._silent: dict[ControlLink, None] = {}
        """Oldest first."""
        self._listeners: list[Listener] = []
        try:
            self._listeners += [Listener(reactor, place, own.key, self._arrives) for place in own.places]
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> list[list[Any]]:
        return [list(each.address) for each in self._listeners]

    def belongs_to(self, job: str) -> None:
        """A newcomer has learned which job this is."""
        self._job = Hello(0, PEER, job).job

    def host(self, job: str, links: Links, take: Take) -> None:
        """Give what comes to this meeting to `take`; also what came before."""
        self.meeting = job, links
        self._takes[job] = take
        if len(self._takes) > MEETINGS:
            del self._takes[next(iter(self._takes))]
        parked, self._parked = self._parked, []
        for sock, hello in parked:
            self._meets(sock, hello)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for link in self._silent:
            link.close()
        for sock, _ in self._parked:
            sock.close()
        self._parked = []

    def _arrives(self, sock: Connection, hello: Hello) -> None:
        purpose = hello.purpose.removeprefix(encryption.MARK)
        listen_to = functools.partial(self._listen_to, purpose)
        if purpose == MEETING or purpose.startswith(AGAIN):
            self._meets(sock, hello)
        elif purpose not in FIRST or purpose == PEER and hello.job != self._job:
            sock.close()
        elif not self._own.encrypt or sock.family == socket.AF_UNIX:
            listen_to(sock)
        else:
            key = encryption.connection_key(sock.key, PEER, 0, 0)
            failed = lambda why: log.warning("hocket: a connection was not encrypted: %s", why)  # noqa: E731
            encryption.secure_accepted(self._reactor, sock, key, listen_to, failed)

    def _meets(self, sock: Connection, hello: Hello) -> None:
        if take := self._takes.get(hello.job):
            take(sock, hello)
            return
        self._parked.append((sock, hello))
        if len(self._parked) > PARKED:
            self._unpark(self._parked[0][0])
        self._reactor.later(FIRST_WORD, lambda: self._unpark(sock))

    def _unpark(self, sock: socket.socket) -> None:
        for each in [each for each in self._parked if each[0] is sock]:
            self._parked.remove(each)
            sock.close()

    def _listen_to(self, purpose: str, sock: socket.socket) -> None:
        link = ControlLink(self._reactor, sock)
        link.most = FIRST_BYTES
        self._silent[link] = None
        if len(self._silent) > SILENT:
            self._forget(next(iter(self._silent)))
        link.on_message = lambda packed: self._first(link, packed, FIRST[purpose])
        link.on_end = lambda how: self._silent.pop(link, None)
        link.start()
        self._reactor.later(FIRST_WORD, lambda: self._forget(link))

    def _forget(self, link: ControlLink) -> None:
        if link in self._silent:
            del self._silent[link]
            link.close()

    def _first(self, link: ControlLink, packed: dict[str, Any], words: dict[str, type]) -> None:
        if link not in self._silent:
            return  # it closes, and says what came with the word before
        try:
            word = unpack(packed, words)
        except Malformed:
            self._forget(link)
            return
        del self._silent[link]
        self._arrived(word, link)
