"""The coordinator's connections, in rank 0's process: what ranks say goes to it, and what it says is sent.

Everything runs on the reactor's thread.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from hocket.control.handshake import Hello
from hocket.control.link import LIMIT, OVER, ControlLink, Once, PackedMessage, encode
from hocket.control.mending import Mending, Redialer
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.coordinator import Coordinator, Unexpected
from hocket.control.protocol.faults import Later, SendMessage, Timer
from hocket.control.protocol.membership import AGAIN, again
from hocket.control.protocol.messages import Bye, Ended, Join, Left, Message, Refused, Values, Welcome, pack, unpack
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError

log = logging.getLogger("hocket.control")
FIRST_WORD = 10.0  # seconds in which a proven connection says who it is
FIRST_BYTES = 32 << 10  # of that word
LAST_WORD = 1.0  # seconds in which a rank that was given up hears it


class Links:
    """`take` is a listener's on_peer; `joined(rank)` is called for each that is here, `complete` once all are.

    keyed: the session's key is derived from the job's and a salt; without a key the coordinator draws it.
    """

    def __init__(self, reactor: Reactor, size: int, job: str, keyed: bool) -> None:
        drawn = secrets.token_hex(32)
        self.coordinator = Coordinator(size, job, Welcome(salt=drawn) if keyed else Welcome(key=drawn))
        self.joined: Callable[[int], object] = lambda rank: None
        self.complete: Callable[[], object] = lambda: None
        self.way: Redialer | None = None
        """By which a rank's connection is made again from its first moment; else it is once `heal` was called."""
        self.epoch = 0
        """The session's, which a rank knows that was welcome; 0: nobody was."""
        self._reactor = reactor
        self._empty = threading.Event()
        self._over = False
        self._links: dict[int, ControlLink] = {}
        self._strangers: set[ControlLink] = set()  # proven, but have not joined

    def take(self, sock: socket.socket, hello: Hello) -> None:
        """A proven connection: wait for its join.  Who comes to a meeting that is over waits for nothing."""
        if self.epoch and hello.purpose == again(self.epoch):
            self.again(hello.rank, sock)
            return
        if self._over or hello.purpose.startswith(AGAIN):
            sock.close()
            return
        link = ControlLink(self._reactor, sock)
        link.keep()
        link.most = FIRST_BYTES
        self._strangers.add(link)
        link.on_message = lambda packed: self._joins(link, hello, packed)
        link.on_end = lambda how: self._strangers.discard(link)
        link.start()
        self._reactor.later(FIRST_WORD, lambda: self._forget(link))

    def heal(self, way: Redialer, ranks: Iterable[int]) -> None:
        """From now on the connections of these ranks are made again when they break.  On the reactor's thread."""
        for rank in ranks:
            if link := self._links.get(rank):
                Mending(self._reactor, link, way, rank, dials=False)

    def again(self, rank: int, sock: socket.socket) -> None:
        """Another connection of this rank has come.  On the reactor's thread."""
        if link := self._links.get(rank):
            link.again(sock)
            return
        how = self.coordinator.members.gone.lost.get(rank)
        if how is None and not self._over:
            sock.close()
            return
        refusal = ControlLink(self._reactor, sock)  # without a word it would come again, for ever
        refusal.send({OVER: "it has left" if how is None else f'it has given this rank up ("{how}")'})
        refusal.start()
        self._reactor.later(LAST_WORD, refusal.close)

    def late(self) -> None:
        """Rank 0's time to wait for the others is over."""
        self._do(self.coordinator.late())

    def part(self) -> None:
        """Rank 0 goes on in another generation, and so do the others: its end is no loss.  On the reactor's thread."""
        self._do(SendMessage(rank, Left(0, {})) for rank in self._links)

    def missed(self, rank: int, how: str) -> None:
        """Hear from elsewhere that this rank will not come, or not again.  On the reactor's thread."""
        if (link := self._links.get(rank)) and link.broken:
            link.end(how)
        self._take(-1, Timer("again", rank, how))

    def here(self, rank: int) -> bool:
        """Has it joined, and is its connection there?  From any thread."""
        return rank in self._links

    @property
    def open(self) -> bool:
        """Is anybody there?  From any thread."""
        return bool(self._links or self._strangers)

    def wait_empty(self, seconds: float | None) -> None:
        """Wait until the others have left, if all were here.  From any thread."""
        self._empty.wait(seconds if self.coordinator.members.formed else 0.0)

    def shut(self) -> None:
        """Close all connections (what was sent is delivered first), and take no others."""
        self._over = True
        for link in [*self._links.values(), *self._strangers]:
            link.close()
        self._links.clear()
        self._strangers.clear()

    def _joins(self, link: ControlLink, hello: Hello, packed: dict[str, Any]) -> None:
        members = self.coordinator.members
        try:
            join = unpack(packed)
        except Malformed:
            join = Bye()
        if not isinstance(join, Join):
            self._forget(link)
            return
        refusal = members.objection(hello, join)
        if refusal or members.gone:  # a rank that comes after another was lost learns that
            first = min(members.gone.lost, default=0)
            link.send(pack(Refused(refusal, members.foreign(hello)) if refusal else members.gone.verdict(first)))
            self._reactor.soon(lambda: self._forget(link))
            return
        rank = join.rank
        self._strangers.discard(link)
        if rank in self._links:
            self._links[rank].close()
        self._links[rank] = link
        link.most = LIMIT
        link.on_message = lambda packed: self._hears(rank, packed)
        link.on_end = lambda how: self._ended(rank, link, how)
        if self.way is not None:
            Mending(self._reactor, link, self.way, rank, dials=False)
        self._take(rank, join)
        self.joined(rank)
        if members.formed:
            self.complete()

    def _forget(self, link: ControlLink) -> None:
        if link in self._strangers:
            self._strangers.discard(link)
            link.close()

    def _hears(self, rank: int, packed: dict[str, Any]) -> None:
        try:
            self._take(rank, unpack(packed))
        except (Malformed, Unexpected) as why:
            log.warning("hocket: rank %d sent a control message that is not understood: %s", rank, why)

    def _ended(self, rank: int, link: ControlLink, how: str) -> None:
        if self._links.get(rank) is link:  # else the rank has come again, or left, and this one is about to be closed
            del self._links[rank]
            self._take(rank, Ended(how))

    def _take(self, rank: int, message: Any) -> None:
        self._do(self.coordinator.take(rank, message))
        if self.coordinator.members.empty:
            self._empty.set()

    def _do(self, instructions: Iterable[SendMessage | Later]) -> None:
        once = Once(_encoded)
        for each in instructions:
            if isinstance(each, Later):
                self._reactor.later(each.seconds, lambda timer=each.timer: self._take(-1, timer))  # type: ignore[misc]
            elif link := self._links.get(each.rank):
                link.post(once(each.message))
                if isinstance(each.message, Bye):
                    self._links.pop(each.rank).close()


def _encoded(message: Message) -> PackedMessage:
    try:
        return encode(pack(message))
    except ArgumentError as why:
        if not isinstance(message, Values):
            raise
        return encode(pack(Values(message.number, [], str(why))))  # too long together
