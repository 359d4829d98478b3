"""Broken connections of the tcp transport are made again, and go on where they were (kept.h, healing.h).

Who sends dials, as at first: it learns, with a proof by the new connection's own key, how many bytes the receiver has,
and gives the rest.  Who receives can only ask for it, at the same listener, and is told whether there is still such a
stream.  A connection that is silent while the system sends its bytes for the third time is tried beside: where the new
one comes, the cable is back.  Threads dial; all else is on the reactor's.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hocket.control import encryption
from hocket.control.handshake import ATTEMPT, Connection, Hello
from hocket.control.mending import Unneeded
from hocket.errors import Error, TransportError
from hocket.system.machine import tcp_info
from hocket.transports.tcp.answers import CLOSED, HERE, IDLE, answer, say
from hocket.transports.tcp.healing import HealingStreams, unsent
from hocket.transports.tcp.history import History
from hocket.transports.tcp.long.groups import lead_of

if TYPE_CHECKING:
    from hocket.transports.tcp.transport import TcpTransport

log = logging.getLogger("hocket.transports")
Key = tuple[int, str]
"""The other rank, and the purpose of the stream's first connection."""
AGAIN, ASK = {"tcp:": "tcr:", "tls:": "tlr:"}, {"tcp:": "tcq:", "tls:": "tlq:"}
"""Purposes of connections that take a broken one's place, and that ask for one."""
CONTROL = "control"
"""The name, behind such a purpose, of a rank's control connection: no channels' has 7 letters."""
PAUSE = 0.01, 0.25
"""Seconds between two attempts, at first and at most."""
REFUSED = 0.3
"""Seconds in which a host says that nobody listens, until its process is believed to be gone."""
LOOK = 1.0
"""Seconds between two looks at connections that may be silent, and until an answered question is asked anew."""
RESENT = 3
"""The times that the system has sent the same bytes by then."""
LINGER = 2.0
"""Seconds in which the last bytes reach the other host, before this process closes their connection."""


class Closed(TransportError):
    """The other side has no such stream any more."""


class Mender:
    """The mending of one transport's."""

    def __init__(self, transport: TcpTransport) -> None:
        self.history = History(transport.context)
        self._transport, self._me = transport, transport.context
        self._again, self._question = AGAIN[transport.purpose], ASK[transport.purpose]
        self._live: weakref.WeakValueDictionary[Key, HealingStreams] = weakref.WeakValueDictionary()
        self._busy: set[tuple[Key, str]] = set()
        self._watched: dict[int, Key] = {}
        self._lingering: set[Any] = set()
        self._lock = threading.Lock()
        self._closed = self._looking = False
        ear, self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ear = os.fdopen(ear, "rb", buffering=0)
        self._ends = select.epoll()
        self._me.reactor.add(self._ear, self._hear)
        self._me.reactor.add(self._ends, self._see)

    def streams(self, key: Key, end: Any) -> HealingStreams:
        """Streams that heal, over our first connection: a socket, or a Tls over it; None: it comes later."""
        me = self._me
        streams = HealingStreams(end, me.encrypt, self._bell, me.check, partial(self._linger, key[0]))
        with self._lock:
            self._live[key] = streams
            looks, self._looking = self._looking, True
        self.watch(key, streams)
        if not looks:
            me.reactor.later(LOOK, self._look)
        return streams

    def forget(self, key: Key) -> None:
        with self._lock:
            self._live.pop(key, None)

    def _linger(self, rank: int, end: Any) -> None:
        """Close this connection with a rank when the other host has all of it."""
        sock: socket.socket = end if isinstance(end, socket.socket) else end.socket
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        until = time.monotonic() + LINGER

        def look() -> None:
            if time.monotonic() < until and not self._lost(rank) and unsent(sock.fileno()) > 0:
                self._me.reactor.later(PAUSE[0], look)
            else:
                end.close()
                self._lingering.discard(end)

        self._lingering.add(end)
        look()

    def _lost(self, rank: int) -> bool:
        session = self._me.session
        return session is not None and rank in session.gone.lost

    def close(self) -> None:
        """The streams are closed already."""
        reactor = self._me.reactor
        while self._lingering and not reactor.dead and not reactor.inside():
            time.sleep(PAUSE[0])
        for end in list(self._lingering):
            end.close()
        self._closed = True
        reactor.remove(self._ear, close=True)
        reactor.remove(self._ends, close=True)
        reactor.soon(lambda: os.close(self._bell))

    # --- what is broken

    def _hear(self) -> None:
        """A run has met the end of a connection that it needs."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._ear.fileno(), 4096)
        self._scan()

    def _scan(self) -> None:
        for key, streams in self._all():
            if streams.to_give:
                self._begin(key, streams, self._mend)
            if streams.to_get:
                self.history.is_damaged(key, streams.damaged)
                self._begin(key, streams, self._ask)

    def _see(self) -> None:
        """Connections on which we send have ended: what is on the way may be lost, though nobody sends now."""
        for number, _ in self._ends.poll(0):
            key = self._watched.pop(number, None)
            streams = self._live.get(key) if key else None
            if streams is not None and streams.out_fd() == number and streams.breaks():
                assert key is not None
                self._begin(key, streams, self._mend)

    def _look(self) -> None:
        """Is a connection silent?"""
        if self._closed:
            return
        for key, streams in self._all():
            sent, acked, _ = streams.kept
            if sent > acked and not streams.closed and _resent(streams.out_fd()) >= RESENT:
                self._begin(key, streams, self._mend)
        self._looking = bool(self._live)
        if self._looking:
            self._me.reactor.later(LOOK, self._look)

    def _all(self) -> list[tuple[Key, HealingStreams]]:
        with self._lock:
            return list(self._live.items())

    def watch(self, key: Key, streams: HealingStreams) -> None:
        """Notice the end of our connection."""
        if (number := streams.out_fd()) < 0:
            return
        self._watched[number] = key
        with contextlib.suppress(OSError, ValueError):
            self._ends.unregister(number)
        with contextlib.suppress(OSError, ValueError):
            self._ends.register(number, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _begin(self, key: Key, streams: HealingStreams, work: Callable[[Key, HealingStreams], object]) -> None:
        with self._lock:
            if (key, work.__name__) in self._busy or self._closed:
                return
            self._busy.add((key, work.__name__))

        def run() -> None:
            try:
                work(key, streams)
            finally:
                with self._lock:
                    self._busy.discard((key, work.__name__))
                # It may have broken again before this line, and nobody else begins while somebody is busy.
                self._me.reactor.later(LOOK if work == self._ask else 0.0, self._scan)

        self._me.reactor.aside("mend", run)

    # --- who sends

    def _mend(self, key: Key, streams: HealingStreams) -> None:
        began = time.monotonic()
        self._try(key, streams, True, lambda: self._give(key, streams, began))

    def _give(self, key: Key, streams: HealingStreams, began: float) -> bool:
        """Is it mended?"""
        if not (streams.to_give or _resent(streams.out_fd()) >= RESENT):
            return True
        end, got = self._dialled(key, self._again, lambda: _over(streams))
        streams.again(end, got)
        poll = select.poll()
        poll.register(streams.out_fd(), select.POLLOUT)
        while (given := streams.give()) is False and not streams.closed:
            if _resent(streams.out_fd()) >= RESENT:
                return False
            poll.poll(50)
        if given:
            self.watch(key, streams)
            self.history.heals(key[0], time.monotonic() - began)
        return bool(given)

    # --- who receives

    def _ask(self, key: Key, streams: HealingStreams) -> None:
        self._try(key, streams, False, lambda: self._asked(key, streams))

    def _asked(self, key: Key, streams: HealingStreams) -> bool:
        if not streams.to_get:
            return True
        end, idle = self._dialled(key, self._question, lambda: _over(streams))
        end.close()
        until = time.monotonic() + LOOK
        while streams.to_get and not idle and time.monotonic() < until:
            _over(streams)
            time.sleep(0.002)
        return bool(idle)

    # --- both

    def _try(self, key: Key, streams: HealingStreams, ours: bool, once: Callable[[], bool]) -> None:
        """Until it is done, the stream is closed, or the peer is lost."""
        deadline, refused, pause = time.monotonic() + self._me.lost_after, 0.0, PAUSE[0]
        while True:
            try:
                if once():
                    return
                deadline, refused, pause = time.monotonic() + self._me.lost_after, 0.0, PAUSE[0]  # it has answered
                continue
            except Unneeded:
                return
            except Closed as why:
                streams.lost(str(why), ours)
                return
            except TransportError as why:
                now, gone = time.monotonic(), why.errno == errno.ECONNREFUSED
                refused = refused or now if gone else 0.0
                if now > deadline or refused and now - refused > REFUSED:
                    streams.lost(f"the connection broke, and could not be made again: {why}", ours)
                    return
            except Error as why:  # the rank is lost
                streams.lost(str(why), ours)
                return
            time.sleep(pause)
            pause = min(2 * pause, PAUSE[1])

    def _dialled(self, key: Key, prefix: str, look: Callable[[], object]) -> tuple[Any, int]:
        """A new connection, and the count of the other side's answer.  TransportError."""
        (rank, purpose), me, transport = key, self._me, self._transport

        def alive() -> None:
            look()
            me.look(rank)  # others may have been lost: members of an elastic job live on

        alive()
        hello = me.hello(prefix + purpose[4:], rank)
        link = transport.paths.dial(rank, lead_of(key)[1], hello, ATTEMPT, alive)
        deadline = time.monotonic() + ATTEMPT
        end: Any = link
        try:
            transport.tune(link, key)
            if me.encrypt and prefix == self._again:
                secret = encryption.connection_key(link.key, hello.purpose, me.rank, rank)
                end = encryption.secure(link, secret, deadline - time.monotonic(), alive, transport.ciphers[rank])
            what, count = answer(end, link, deadline, alive)
        except TransportError:
            link.close()
            raise
        except OSError as why:
            link.close()
            raise TransportError(f"rank {rank}: {why}") from None
        except BaseException:
            link.close()
            raise
        if what == CLOSED:
            link.close()
            raise Closed(f"rank {rank} has closed this connection")
        return end, count if prefix == self._again else int(what == IDLE)

    # --- control connections (control/mending.py)

    def control_again(self, rank: int, seconds: float, look: Callable[[], object]) -> socket.socket:
        deadline, hello = time.monotonic() + seconds, self._me.hello(self._again + CONTROL, rank)
        link = self._transport.paths.dial(rank, 0, hello, seconds, look)
        if not self._me.encrypt:
            return link
        secret = encryption.connection_key(link.key, hello.purpose, self._me.rank, rank)
        return encryption.secured_dial(link, secret, deadline - time.monotonic(), look)

    def control_ask(self, rank: int, seconds: float, look: Callable[[], object]) -> None:
        hello = self._me.hello(self._question + CONTROL, rank)
        self._transport.paths.dial(rank, 0, hello, seconds, look).close()

    def control_is_down(self, rank: int) -> None:
        """The path of the control connection with this rank is down, though nothing may have been said by it yet."""
        session, reactor = self._me.session, self._me.reactor

        def ask() -> None:
            with contextlib.suppress(Error):
                self.control_ask(rank, ATTEMPT, partial(self._me.look, rank))

        if session is not None and rank == 0:
            reactor.soon(lambda: session.asked(rank))
        elif session is not None and self._me.rank == 0:
            reactor.aside("mend", ask)

    def _control_comes(self, link: Connection, hello: Hello) -> None:
        session = self._me.session
        if session is None:
            link.close()
            return
        take = partial(session.again, hello.rank)
        if self._me.encrypt:
            secret = encryption.connection_key(link.key, hello.purpose, hello.rank, self._me.rank)
            encryption.secure_accepted(self._me.reactor, link, secret, take, lambda why: log.debug("hocket: %s", why))
        else:
            take(link)

    # --- the other side of it, on the reactor's thread

    def on_peer(self, link: Connection, hello: Hello) -> bool:
        """A connection that another rank has dialled.  False: it is not about a broken one."""
        prefix, name = hello.purpose[:4], hello.purpose[4:]
        if prefix == self._question:
            self._asks(link, hello.rank, name)
        elif prefix == self._again and name == CONTROL:
            self._control_comes(link, hello)
        elif prefix == self._again:
            self._transport.secured(link, hello, self._comes, logging.DEBUG)
        return prefix in (self._question, self._again)

    def _comes(self, end: Any, link: Connection, hello: Hello) -> None:
        """A connection that takes a broken one's place."""
        key = hello.rank, self._transport.purpose + hello.purpose[4:]
        with self._transport.lock:  # `open` takes what has come
            streams = self._live.get(key)
            if streams is not None and not streams.closed:
                count = streams.got()
                if say(end, link, HERE, count):
                    streams.receive_from(end)
                else:
                    end.close()
            elif self._transport.takes(end, link, key):  # before these channels were opened: nothing of it was read
                say(end, link, HERE, 0)
            else:
                say(end, link, CLOSED, 0)
                end.close()

    def _asks(self, link: Connection, rank: int, name: str) -> None:
        """The receiver of a stream of ours has lost its connection, or rank 0 this rank's control connection."""
        if name == CONTROL:
            link.close()
            if self._me.session is not None:
                self._me.session.asked(rank)
            return
        key = rank, self._transport.purpose + name
        streams = self._live.get(key)
        if streams is None or streams.closed:
            say(link, link, IDLE if streams is None and self._transport.opens(key) else CLOSED, 0)
        else:
            broken = streams.breaks() or streams.to_give
            say(link, link, HERE if broken else IDLE, 0)
            if broken:
                self._begin(key, streams, self._mend)
        link.close()


def _over(streams: HealingStreams) -> None:
    if streams.closed:
        raise Unneeded


def _resent(number: int) -> int:
    """The times that the system has sent the oldest bytes of this socket anew, or asked the peer, with no answer.

    It asks where nothing is on the way: as the own interface was down when these bytes would have gone.
    """
    info = tcp_info(number)
    return max(info.get("retransmits", 0), info.get("probes", 0))
