"""Communicators of two: one process listens, others connect.  Each is a failure domain of its own.

The listening process serves all of them with one thread for control.  A process that dies ends its own communicator
alone.  The pair is a job of two ranks, whose coordinator is in the listening process.
"""

from __future__ import annotations

import collections
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType

from hocket.arguments import optional, seconds
from hocket.collectives.base.config import Config, given
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.job.place import OPEN_KEY, addresses_of, meeting_path
from hocket.collectives.job.start import Start
from hocket.collectives.start import init
from hocket.control import encryption
from hocket.control.addresses import BindAddress
from hocket.control.dial import show
from hocket.control.handshake import Address, Connection, Hello
from hocket.control.links import Links
from hocket.control.listener import Listener
from hocket.control.protocol.membership import PURPOSE
from hocket.control.reactor import Reactor
from hocket.control.rendezvous import Identity, Meet, Where
from hocket.control.session import LinkSession
from hocket.errors import ArgumentError, PeerLostError, TimeoutError, TransportError
from hocket.system.machine import loopback

log = logging.getLogger("hocket")
JOB = "hocket: a pair"
WHERE = "set HOCKET_SECRET, or pass secret="
MEET = 3.0
"""Seconds for each step of a meeting: the other end is here already."""
SOON = 0.5
"""Seconds after which the next one is met beside one that is late."""
SEVERAL = 8
"""Meetings at once, at most."""
ARRIVED = 256
"""Connections that wait to be accepted, at most: who comes then is turned away."""
OF_A_JOB = ("mpi", "threads")
"""Transports that a pair cannot have."""


class SharedReactor:
    """A reactor that the listener and its communicators use: it ends with the last of them."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        self._users, self._lock = 1, threading.Lock()

    def share(self) -> SharedReactor:
        """One more uses it."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """One uses it no more."""
        with self._lock:
            self._users -= 1
            over = self._users == 0
        if over:
            self.reactor.close()


class Pairs:
    """The listener that `hocket.listen` returns: `accept` gives the communicators of those that connect, in their
    order.

    Iterating accepts for ever.  `address` is what `hocket.connect` takes.
    """

    def __init__(self, address: BindAddress, key: bytes | None, settings: Config, transport: str | None) -> None:
        self._key, self._settings, self._transport = key, settings, transport
        self._shared = SharedReactor()
        self._reactor = self._shared.reactor
        self._waiting: collections.deque[Links] = collections.deque()
        """Connections that are not met yet."""
        self._arrived: set[Links] = set()
        """All connections, also those that have not joined; the reactor's thread alone uses it."""
        self._met: collections.deque[Communicator] = collections.deque()
        self._meetings: dict[Links, float] = {}
        """Under way, with the moment of their beginning."""
        self._accepting = 0
        self._came = threading.Condition()
        self._closed = False
        meet = Meet(self._identity(0), None, 0.0, self._reactor)
        try:
            self._listener = Listener(self._reactor, address, key, lambda sock, hello: self._arrives(meet, sock, hello))
        except BaseException:
            self._reactor.close()
            raise

    @property
    def address(self) -> str:
        """Where it listens: unix:/path or tcp:host:port."""
        return show(self._listener.address)

    def accept(self, timeout: float | None = None) -> Communicator:
        """Wait for the next process that connects: a communicator of two, in which this process is rank 0.

        It does not become the default.  Several threads may accept.  Who has connected and stalls keeps nobody else:
        the next ones are met beside it, eight at once, and it is forgotten after seconds.  Raises TimeoutError after
        `timeout` seconds (None: it waits for ever), ArgumentError (it was closed).
        """
        limit = float("inf") if timeout is None else seconds(timeout, "timeout")
        deadline = time.monotonic() + limit
        with self._came:
            self._accepting += 1
            try:
                while not self._met:
                    left = deadline - time.monotonic()
                    if self._closed:
                        raise ArgumentError("accept: this listener is closed")
                    if left <= 0:
                        raise TimeoutError(f"accept: nobody connected to {self.address} within {limit:g} s", [])
                    self._meet_next()
                    late = self._waiting or self._meetings
                    self._came.wait(min(left, SOON) if late else None if left == float("inf") else left)
                return self._met.popleft()
            finally:
                self._accepting -= 1

    def close(self) -> None:
        """Listen no more.  Communicators that were accepted stay."""
        with self._came:
            if self._closed:
                return
            self._closed = True
            self._came.notify_all()
        self._listener.close()
        for links in [*self._waiting, *self._meetings]:
            self._reactor.soon(links.shut)
        for comm in self._met:  # nobody has them
            comm.close(timeout=0.1, log_as="a pair that nobody accepted")
        self._shared.close()

    def __enter__(self) -> Pairs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Communicator]:
        while not self._closed:
            yield self.accept()

    def __repr__(self) -> str:
        return f"<Pairs at {self.address}{', closed' if self._closed else ''}>"

    def _identity(self, rank: int) -> Identity:
        return Identity(rank, 2, JOB, self._key, self._settings.encrypt)

    def _arrives(self, meet: Meet, sock: Connection, hello: Hello) -> None:
        """On the reactor's thread."""
        self._arrived = {each for each in self._arrived if each.open and not each.coordinator.members.formed}
        if len(self._arrived) >= ARRIVED:
            log.warning("a process is turned away: %d wait already at %s", ARRIVED, self.address)
            sock.close()
            return
        links = Links(self._reactor, 2, JOB, keyed=self._key is not None)
        links.joined = lambda rank: self._joined(rank, links)
        self._arrived.add(links)
        meet.taker(links)(sock, hello)

    def _joined(self, rank: int, links: Links) -> None:
        with self._came:
            if not rank and links not in self._meetings:  # it says that it is this process
                self._reactor.soon(links.shut)
            elif rank and not self._closed:
                self._waiting = collections.deque(each for each in self._waiting if each.here(1))  # others gave up
                self._waiting.append(links)
                self._came.notify()

    def _meet_next(self) -> None:
        """Begin as many meetings as are wanted, beside those that are late.  `_came` is held."""
        now = time.monotonic()
        in_time = sum(now - began < SOON for began in self._meetings.values())
        while self._waiting and in_time < self._accepting and len(self._meetings) < SEVERAL:
            links = self._waiting.popleft()
            if links.here(1):
                in_time += 1
                self._meetings[links] = now
                threading.Thread(target=self._meets, args=(links,), name="hocket-meets", daemon=True).start()

    def _meets(self, links: Links) -> None:
        """In a thread of its own.  Whatever goes wrong is this one's alone."""
        comm = None
        try:
            comm = self._made(links)
        except Exception as error:
            expected = isinstance(error, (PeerLostError, TimeoutError))
            log.log(logging.INFO if expected else logging.WARNING, "a process that has connected is gone: %s", error)
            self._reactor.soon(links.shut)
        with self._came:
            del self._meetings[links]
            if comm is not None and not self._closed:
                self._met.append(comm)
                comm = None
            self._came.notify_all()
        if comm is not None:
            comm.close(timeout=0.1, log_as="a pair of a closed listener")

    def _made(self, links: Links) -> Communicator:
        wait = min(self._settings.timeout, MEET)

        def meet(reactor: Reactor) -> tuple[LinkSession, str]:
            return Accept(self._identity(0), links, wait, reactor).meet(), JOB

        why = f"rank 0 of 2: accepted at {self.address}"
        comm = init.of_two(Start(0, 2, why, meet), self._settings, self._transport, wait, self._reactor)
        comm.world.reactor = self._shared.share()
        return comm


class Accept(Meet):
    """The listening process's end of a meeting of two: the other one is here already."""

    def __init__(self, who: Identity, links: Links, timeout: float, reactor: Reactor) -> None:
        super().__init__(who, None, timeout, reactor)
        self.links = links

    def meet(self) -> LinkSession:
        mine, its = socket.socketpair()
        self.reactor.soon(lambda: self.links.take(its, Hello(0, PURPOSE, self.who.job)))
        session = self.session(mine)
        session._links = self.links
        return self._settle(session)


def listen(
    address: str | None = None, *, secret: str | bytes | None = None, auth: str = "secret", iface: str | None = None,
    encrypt: bool | None = None, transport: str | None = None, like: Communicator | None = None,
) -> Pairs:  # fmt: skip
    """Let other processes connect: each makes a communicator of two with this one.  Needs no `hocket.init`.

    - `address`: "tcp:host:port" (port 0: a free one) or "unix:/path" in a folder that only this user may enter; default
      TCP at the interface of `iface` (loopback) where there is a secret, else a Unix socket.
    - `like`: a communicator whose job's secret, encryption, interface and transports these pairs have, where the
      arguments say nothing else; `connect` needs the same.  Else they are those of the environment.
    - the rest: as in `hocket.init`.

    Raises ArgumentError: that would be plain, and the job encrypts.

    >>> import hocket, numpy as np, threading
    >>> with hocket.listen() as pairs:
    ...     worker = threading.Thread(target=lambda: print(hocket.connect(pairs.address).recv(np.zeros(3), 0)))
    ...     worker.start()
    ...     comm = pairs.accept(timeout=10)
    ...     comm.send(np.arange(3.0), dest=1)
    ...     worker.join()
    [0. 1. 2.]
    """
    settings, key, transport = _settings("listen", like, secret, auth, iface, encrypt, transport)
    place: BindAddress
    if address is not None:
        place = addresses_of(address, least=0)[0]
    elif key is not None:
        host = settings.iface or loopback()
        place = ("tcp", host, list(settings.ports)) if settings.ports else ("tcp", host, 0)
    else:
        place = ("unix", meeting_path(os.environ, secrets.token_hex(16)))
    if place[0] == "tcp":
        _secret_enough("listen", settings, key)
    if settings.encrypt and (missing := encryption.missing()):  # else each that connects would hear of it
        raise TransportError(f"listen: the job encrypts: {missing}")
    init.check_transports(*filter(None, (transport or settings.transport or "").split(",")))
    return Pairs(place, key if place[0] == "tcp" else None, settings, transport)


def connect(
    address: str, *, timeout: float | None = None, secret: str | bytes | None = None, auth: str = "secret",
    iface: str | None = None, encrypt: bool | None = None, transport: str | None = None,
    like: Communicator | None = None,
) -> Communicator:  # fmt: skip
    """Make a communicator of two with the process that listens at `address`, in which this process is rank 1.

    It does not become the default.  The rest: as in `listen`.  Raises TransportError (another secret), TimeoutError
    (nobody accepts within `timeout` seconds; 60).
    """
    settings, key, transport = _settings("connect", like, secret, auth, iface, encrypt, transport)
    places, wait = addresses_of(address), init.limit(timeout, settings)
    if places[0][0] == "tcp":
        if key is None:
            raise ArgumentError(f"connect: a TCP address needs the listener's secret: {WHERE}")
        _secret_enough("connect", settings, key)

    def meet(reactor: Reactor) -> tuple[LinkSession, str]:
        who = Identity(1, 2, JOB, key if places[0][0] == "tcp" else None, settings.encrypt)
        return Meet(who, _where(places), wait, reactor).meet(), JOB

    return init.of_two(Start(1, 2, f"rank 1 of 2: connected to {address}", meet), settings, transport, wait)


def _settings(
    what: str, like: Communicator | None, secret: str | bytes | None, auth: str, iface: str | None,
    encrypt: bool | None, transport: str | None,
) -> tuple[Config, bytes | None, str | None]:  # fmt: skip
    """The settings of a pair, the key that it proves, and its transports."""
    base = init.config() if like is None else like.config
    settings, transport = given(base, secret, optional(iface, "iface"), encrypt), optional(transport, "transport")
    key = settings.secret or (OPEN_KEY if auth == "none" else None)
    if like is not None:
        if base.encrypt and not settings.encrypt:
            raise ArgumentError(f"{what}: this job encrypts what leaves the host, and encrypt=False would not")
        key = key or getattr(like.world.session, "job_key", None)
        names = [name for name in (base.transport or "").split(",") if name not in ("", *OF_A_JOB)]
        transport = transport or ",".join(names) or None
    return settings, key, transport


def _secret_enough(what: str, settings: Config, key: bytes | None) -> None:
    if settings.encrypt and key in (None, OPEN_KEY):
        raise ArgumentError(f"{what}: encryption needs a secret that both ends prove: {WHERE}")


def _where(places: list[Address]) -> Where:
    kind, place, *_ = places[0]
    return Where(("unix", place) if kind == "unix" else ("tcp", place, [each[2] for each in places if len(each) > 2]))
