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
from typing import TYPE_CHECKING, Any

from hocket.control import encryption
from hocket.control.dial import dial
from hocket.control.handshake import ATTEMPT, Connection, Hello
from hocket.errors import Error, TransportError
from hocket.transports.tcp.answers import CLOSED, HERE, IDLE, answer, say
from hocket.transports.tcp.healing import HealingStreams, unsent
from hocket.transports.tcp.history import History

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
    """The mending of one transport's.  `after`: seconds of silence after which a peer is lost."""

    def __init__(self, transport: TcpTransport, after: float) -> None:
        self.history = History(transport.context.rank)
        self.session: Any = None
        """The job's, whose control connections come here, too."""
        self._transport, self._me, self._after = transport, transport.context, after
        self._live: weakref.WeakValueDictionary[Key, HealingStreams] = weakref.WeakValueDictionary()
        self._busy: set[tuple[Key, str]] = set()
        self._watched: dict[int, Key] = {}
        self._lingering: list[tuple[float, Any]] = []
        self._lock = threading.Lock()
        self._closed = self._looking = False
        ear, self.bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ear = os.fdopen(ear, "rb", buffering=0)
        self._ends = select.epoll()
        self._me.reactor.add(self._ear, self._hear)
        self._me.reactor.add(self._ends, self._see)

    def add(self, key: Key, streams: HealingStreams) -> None:
        with self._lock:
            self._live[key] = streams
            looks, self._looking = self._looking, True
        self._watch(key, streams)
        if not looks:
            self._me.reactor.later(LOOK, self._look)

    def forget(self, key: Key) -> None:
        with self._lock:
            self._live.pop(key, None)

    def linger(self, end: Any) -> None:
        """Close this connection when the other host has all of it."""
        sock = end if isinstance(end, socket.socket) else end.socket
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        self._lingering.append((time.monotonic() + LINGER, end))
        self._me.reactor.later(PAUSE[0], self._linger)

    def _linger(self) -> None:
        now, still = time.monotonic(), []
        for until, end in self._lingering:
            number = (end if isinstance(end, socket.socket) else end.socket).fileno()
            if now < until and not self._closed and unsent(number) > 0:
                still.append((until, end))
            else:
                end.close()
        self._lingering = still
        if still:
            self._me.reactor.later(PAUSE[0], self._linger)

    def close(self) -> None:
        """The streams are closed already."""
        while self._lingering and not self._me.reactor.dead:
            time.sleep(PAUSE[0])
        self._closed = True
        reactor = self._me.reactor
        reactor.remove(self._ear, close=True)
        reactor.remove(self._ends, close=True)
        reactor.soon(lambda: os.close(self.bell))

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

    def _watch(self, key: Key, streams: HealingStreams) -> None:
        number = streams.out_fd()
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

        threading.Thread(target=run, name="hocket-mend", daemon=True).start()

    # --- who sends

    def _mend(self, key: Key, streams: HealingStreams) -> None:
        began = time.monotonic()
        self._try(key, streams, True, lambda: self._give(key, streams, began))

    def _give(self, key: Key, streams: HealingStreams, began: float) -> bool:
        """Is it mended?"""
        if not (streams.to_give or _resent(streams.out_fd()) >= RESENT):
            return True
        end, got = self._dialled(key, AGAIN, lambda: _over(streams))
        streams.again(end, got)
        poll = select.poll()
        poll.register(streams.out_fd(), select.POLLOUT)
        while (given := streams.give()) is False and not streams.closed:
            if _resent(streams.out_fd()) >= RESENT:
                return False
            poll.poll(50)
        if given:
            self._watch(key, streams)
            self.history.heals(key[0], time.monotonic() - began)
        return bool(given)

    # --- who receives

    def _ask(self, key: Key, streams: HealingStreams) -> None:
        self._try(key, streams, False, lambda: self._asked(key, streams))

    def _asked(self, key: Key, streams: HealingStreams) -> bool:
        if not streams.to_get:
            return True
        end, idle = self._dialled(key, ASK, lambda: _over(streams))
        end.close()
        until = time.monotonic() + LOOK
        while streams.to_get and not idle and time.monotonic() < until:
            _over(streams)
            time.sleep(0.002)
        return bool(idle)

    # --- both

    def _try(self, key: Key, streams: HealingStreams, ours: bool, once: Callable[[], bool]) -> None:
        """Until it is done, the stream is closed, or the peer is lost."""
        deadline, refused, pause = time.monotonic() + self._after, 0.0, PAUSE[0]
        while True:
            try:
                if once():
                    return
                pause = PAUSE[0]
                continue
            except _Over:
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

    def _dialled(self, key: Key, purposes: dict[str, str], look: Callable[[], object]) -> tuple[Any, int]:
        """A new connection, and the count of the other side's answer.  TransportError."""
        (rank, purpose), me, transport = key, self._me, self._transport

        def alive() -> None:
            look()
            me.look()

        alive()
        hello = me.hello(purposes[purpose[:4]] + purpose[4:], rank)
        address, deadline = ("tcp", *transport.addresses[rank]), time.monotonic() + ATTEMPT
        link = dial(address, me.key, hello, ATTEMPT, alive)
        end: Any = link
        try:
            transport.tune(link, key)
            if me.encrypt and purposes is AGAIN:
                secret = encryption.connection_key(link.key, hello.purpose, me.rank, rank)
                end = encryption.secure(link, secret, deadline - time.monotonic(), alive, transport.ciphers[rank])
            what, count = answer(end, link, deadline, alive)
        except TransportError:
            link.close()
            raise
        except OSError as why:
            link.close()
            raise TransportError(f"tcp:{address[1]}:{address[2]}: {why}") from None
        except BaseException:
            link.close()
            raise
        if what == CLOSED:
            link.close()
            raise Closed(f"rank {rank} has closed this connection")
        return end, count if purposes is AGAIN else int(what == IDLE)

    # --- control connections (control/mending.py)

    def _purpose(self, purposes: dict[str, str]) -> str:
        return purposes["tls:" if self._me.encrypt else "tcp:"] + CONTROL

    def control_again(self, rank: int, seconds: float, look: Callable[[], object]) -> socket.socket:
        deadline, hello = time.monotonic() + seconds, self._me.hello(self._purpose(AGAIN), rank)
        link = dial(("tcp", *self._transport.addresses[rank]), self._me.key, hello, seconds, look)
        if not self._me.encrypt:
            return link
        secret = encryption.connection_key(link.key, hello.purpose, self._me.rank, rank)
        return encryption.secured_dial(link, secret, deadline - time.monotonic(), look)

    def control_ask(self, rank: int, seconds: float, look: Callable[[], object]) -> None:
        hello = self._me.hello(self._purpose(ASK), rank)
        dial(("tcp", *self._transport.addresses[rank]), self._me.key, hello, seconds, look).close()

    def control_comes(self, link: Connection, hello: Hello) -> None:
        def take(sock: socket.socket) -> None:
            if self.session is not None:
                self.session.again(hello.rank, sock)
            else:
                sock.close()

        if self._me.encrypt:
            secret = encryption.connection_key(link.key, hello.purpose, hello.rank, self._me.rank)
            encryption.secure_accepted(self._me.reactor, link, secret, take, lambda why: log.debug("hocket: %s", why))
        else:
            take(link)

    # --- the other side of it, on the reactor's thread

    def comes(self, end: Any, link: Connection, hello: Hello) -> None:
        """A connection that takes a broken one's place."""
        prefix = next(was for was, now in AGAIN.items() if hello.purpose.startswith(now))
        key = hello.rank, prefix + hello.purpose[4:]
        with self._transport.lock:  # `open` takes what has come
            self._comes(end, link, key)

    def _comes(self, end: Any, link: Connection, key: Key) -> None:
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

    def asks(self, link: Connection, hello: Hello) -> None:
        """The receiver of a stream of ours has lost its connection, or rank 0 this rank's control connection."""
        if hello.purpose == self._purpose(ASK):
            link.close()
            if self.session is not None:
                self.session.asked(hello.rank)
            return
        prefix = next(was for was, now in ASK.items() if hello.purpose.startswith(now))
        key = hello.rank, prefix + hello.purpose[4:]
        streams = self._live.get(key)
        if streams is None or streams.closed:
            say(link, link, IDLE if streams is None and self._transport.opens(key) else CLOSED, 0)
        else:
            broken = streams.breaks() or streams.to_give
            say(link, link, HERE if broken else IDLE, 0)
            if broken:
                self._begin(key, streams, self._mend)
        link.close()


class _Over(Exception):
    """Nobody needs it any more."""


def _over(streams: HealingStreams) -> None:
    if streams.closed:
        raise _Over


def _resent(number: int) -> int:
    """The times that the system has sent the oldest bytes of this socket anew."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as sock:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[2]
    return 0
