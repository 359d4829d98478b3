"""The tcp transport: for each communicator and pair of ranks one stream in each direction, opened at first use.

Each rank listens on one port of the interface that routes to the other ranks (never on all of them, and never on
loopback if another host takes part).  Who sends dials; every connection proves the job's key first, so a stranger,
a port scanner or a stale process is closed and disturbs nothing.  With HOCKET_ENCRYPT each is encrypted right behind
that (encryption.py), or not used.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hocket.control import encryption
from hocket.control.dial import connect
from hocket.control.handshake import Connection, Hello
from hocket.control.listener import Listener
from hocket.errors import TransportError
from hocket.system import tls
from hocket.system.machine import seen_here, wish
from hocket.system.queueing import queueing
from hocket.system.tls import Tls
from hocket.transports.base import Context
from hocket.transports.tcp.channels import Held, Streams, TcpChannels
from hocket.transports.tcp.long import congestion
from hocket.transports.tcp.long.groups import LETTERS, Groups, StreamGroup, key_of, lead_of
from hocket.transports.tcp.long.paths import Paths
from hocket.transports.tcp.mending import Mender
from hocket.transports.tcp.offers import is_offer, network_id, ways_to
from hocket.transports.tcp.stream import SocketStreams
from hocket.transports.tcp.tls_channels import TlsStreams

log = logging.getLogger("hocket.transports")
PURPOSE = "tcp:"
VERDICT = 0.5
"""Seconds that a failed handshake waits for the news that its peer is lost."""
FURTHER = 5.0
"""Seconds for a further stream to be opened: a job does without."""
TOO_LATE = 10_000
"""Streams that are remembered as too late; one that comes after so many others is kept until the end."""
INTERACTIVE, BULK = 6, 2
"""SO_PRIORITY of lanes above 0 and below; the system's own 0 of others.  pfifo_fast, prio and fq have three bands, by
Linux' table 6, 0 and 2 from the first to the last.  7 needs privileges."""
HEALS = 1
"""The version of mending.py's answers: both ends must have the same, or a broken connection is not made again."""
HEALS_INSIDE = False
"""Are connections inside a host made again, too?  Nothing breaks there but by force."""
LOCAL_CONGESTION = b"cubic"
"""For connections inside a host: bbr, some systems' default, paces what has no need of it."""


class TcpTransport:
    """Streams between any two ranks that have a route."""

    name = "tcp"

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lock = threading.RLock()  # mending.py holds it and calls `takes`
        self._closed = False
        self._arrived: dict[tuple[int, str], tuple[Any, socket.socket]] = {}
        """Streams, as their channels take them: sockets, or Tls; and their sockets."""
        self._waiting: dict[tuple[int, str], tuple[Streams, int]] = {}
        """With the priorities of their lanes."""
        self._too_late: dict[tuple[int, str], None] = {}
        """Streams that may still be on their way to channels that have been closed, the oldest first."""
        place: Any = ("tcp", context.host, context.ports or 0)
        self._listener = context.listen(place, self._on_peer)
        self._further = [self._listens(path) for path in context.paths]
        """Listeners of further paths; None: this host has no such interface."""
        self.addresses: dict[int, tuple[str, int]] = {}
        self.ciphers: dict[int, int] = {}
        self.healing: set[int] = set()
        """Ranks to which broken connections are made again."""
        self.purpose = encryption.MARK if context.encrypt else PURPOSE
        self.mender = Mender(self)
        self.groups = Groups(self)
        self.paths = Paths(context.key, self.mender.history, self.mender.control_is_down)
        self._controls: dict[int, str] = {}
        self._over: dict[tuple[int, str], None] = {}
        """First streams of healing channels that have been closed: further ones may still come."""
        self.held: set[Held] = set()
        """The streams of all communicators, also of those that were dropped and are not closed yet."""
        self._priorities: dict[tuple[int, str], int] = {}
        """The streams that are open, or are being opened."""

    @staticmethod
    def available() -> str | None:
        return None

    def offer(self) -> dict[str, Any]:
        _, host, port = self._listener.address  # type: ignore[misc]
        offer: dict[str, Any] = {"host": host, "port": port, "network": network_id(), "heals": HEALS}
        offer["encrypts"] = self.context.encrypt
        offer["checks"] = self.context.check
        further = [listener and list(listener.address[1:]) for listener in self._further]
        offer["paths"] = [[host, port], *further]
        return {**offer, "cipher": tls.FASTEST} if self.context.encrypt else offer

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        """A loopback address does not reach another host; the connection itself is made at first use."""
        refusals: list[str | None] = []
        for offer in offers:
            if not offer:
                refusals.append("that rank offers no TCP address")
            elif not is_offer(offer):
                refusals.append("that rank's offer is not a TCP address")
            elif offer.get("encrypts", False) != self.context.encrypt:
                refusals.append(f"one of the two encrypts: {encryption.DIFFERS}")
            elif offer.get("checks", False) != self.context.check:
                refusals.append("one of the two checks what comes: HOCKET_CHECK must be the same on every rank")
            elif ipaddress.ip_address(offer["host"]).is_loopback and offer["network"] != network_id():
                refusals.append(f"it listens on {offer['host']}, which is loopback, on another host or in a container")
            else:
                refusals.append(None)
        known = {r: offer for r, offer in enumerate(offers) if offer and is_offer(offer)}
        own = self._listener.address[1]
        self.addresses.update({r: (seen_here(o["host"], own), o["port"]) for r, o in known.items()})
        near = not (HEALS_INSIDE or self.context.check)
        far = {r for r, o in known.items() if not near or o["network"] != network_id()}
        self.healing.update(r for r in far if known[r].get("heals") == HEALS)
        if self.context.session is not None:
            self.context.session.heal(self.mender, self.healing)
        self.ciphers.update({r: encryption.cipher(o.get("cipher")) for r, o in known.items()})
        further = [listener.address[1] if listener else "" for listener in self._further]
        for r in self.healing & known.keys():
            self.paths.learn(r, ways_to(self.addresses[r], known[r], own, further))
        return refusals

    def _listens(self, path: str) -> Listener | None:
        place: Any = ("tcp", path, self.context.ports or 0)
        return self.context.listen(place, self._on_peer) if path else None

    def detail(self, rank: int) -> str:
        """For people: is it encrypted, or checked; has it been made again?"""
        kinds = [f"encrypted: TLS 1.3, {tls.CIPHERS[self.ciphers[rank]]}"] if self.context.encrypt else []
        kinds += ["checked: CRC32C"] if self.context.check and not self.context.encrypt else []
        kinds += [self._controls[rank]] if rank in self._controls else []
        kinds += [f"{self.paths.count(rank)} paths"] if rank in self.healing and self.paths.count(rank) > 1 else []
        return ", ".join([*kinds, *self.groups.words(rank), *self.mender.history.words(rank)])

    def queueing(self) -> str:
        """For people: which interface sends, how it queues, and whether lanes' priorities count there."""
        return queueing(self._listener.address[1])

    def host_of(self, rank: int) -> str:
        """The IP address at which that rank listens."""
        return self.addresses[rank][0]

    def _on_peer(self, link: Connection, hello: Hello) -> None:
        if hello.purpose.startswith(self.purpose):
            self.secured(link, hello, self._on_stream, logging.WARNING)
        elif not self.mender.on_peer(link, hello):
            log.warning("hocket: closed a connection of rank %d: %s", hello.rank, encryption.DIFFERS)
            link.close()

    def secured(
        self, link: Connection, hello: Hello, take: Callable[[Any, Connection, Hello], object], level: int
    ) -> None:
        """`take` a connection that another rank has dialled: a socket, or a Tls over it; and the socket.

        level: at which it is logged that the other side could not encrypt it.
        """
        tuned(link)
        if not self.context.encrypt:
            take(link, link, hello)
            return
        encryption.Securing(
            self.context.reactor, link,
            encryption.connection_key(link.key, hello.purpose, hello.rank, self.context.rank),
            lambda end: take(end, link, hello),
            lambda why: log.log(level, "hocket: closed a connection of rank %d: %s", hello.rank, why),
        )  # fmt: skip

    def _on_stream(self, stream: Any, link: Connection, hello: Hello) -> None:
        key = hello.rank, hello.purpose
        lead, number = lead_of(key)
        with self._lock:  # whoever opens the group takes what has arrived before, under this lock
            group = self.groups.get(lead) if number else None
            if group is None:
                self._arrives(stream, link, key)
        if group is not None:
            mark(link, self._priorities.get(lead, 0))
            group.arrives(number, stream)

    def _arrives(self, stream: Any, link: Connection, key: tuple[int, str]) -> None:
        lead, number = lead_of(key)
        if number and lead in self._over:
            link.close()
            return
        channels, priority = self._waiting.pop(key, (None, 0))
        if channels is not None:
            mark(link, priority)
            channels.receive_from(stream)
        elif not self._closed and key not in self._arrived and key not in self._too_late:
            self._arrived[key] = stream, link
        else:
            self._too_late.pop(key, None)
            link.close()

    def takes(self, stream: Any, link: Connection, key: tuple[int, str]) -> bool:
        """A stream's second connection has come before the channels were opened.  False: they have been closed."""
        with self._lock:
            if self._closed or key in self._too_late:
                return False
            before, _ = self._arrived.pop(key, (None, None))
            if before is not None:
                before.close()
            self._on_stream(stream, link, Hello(key[0], key[1], self.context.job))
        return True

    def opens(self, key: tuple[int, str]) -> bool:
        """Is this stream of ours being opened?"""
        return key in self._priorities

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        return self._lock

    def tune(self, link: socket.socket, key: tuple[int, str]) -> None:
        """A connection that takes another one's place is marked as that was."""
        tuned(link)
        self._controlled(link, key[0])
        mark(link, self._priorities.get(lead_of(key)[0], 0))

    def _controlled(self, link: socket.socket, rank: int) -> None:
        """Give a connection that we send on, to another host, its congestion control."""
        wanted = self.context.congestion
        if rank in self.healing and wanted != congestion.SYSTEM:
            refused = congestion.control(link, wanted)
            if wanted != congestion.AUTO or congestion.round_trip(link) >= congestion.LONG:
                self._controls[rank] = congestion.control_of(link) + (refused and f", as {refused}")

    def open(self, rank: int, name: str, look: Callable[[], object], priority: int = 0) -> Streams:
        """Channels to and from `rank`: ours over the stream that we dial, theirs over the one that they dial.

        So nobody waits here until the other makes the same call: its reactor answers.  `look` is called between
        attempts, and raises if there is no more use in trying.
        """
        key = rank, self.purpose + name
        self._priorities[key] = priority
        link, end = self._dialled(key, priority, look, self.context.timeout)
        with self._lock:
            streams = self._streams(key, end)
            if key in self._arrived:
                stream, incoming = self._arrived.pop(key)
                mark(incoming, priority)
                streams.receive_from(stream)
            else:
                self._waiting[key] = streams, priority
            further = [(n, *self._arrived.pop(each)) for n in range(1, len(LETTERS))
                       if (each := key_of(key, n)) in self._arrived]  # fmt: skip
        if isinstance(streams, StreamGroup):
            for number, stream, incoming in further:
                mark(incoming, priority)
                streams.arrives(number, stream)
            if congestion.round_trip(link) >= congestion.LONG:
                streams.many.cut()
            self.groups.begins(streams)
        return streams

    def dial(self, group: StreamGroup, number: int) -> None:
        """Open a further stream of this group.  TransportError: it does not come within FURTHER seconds."""
        priority = self._priorities.get(group.key, 0)

        def look() -> None:
            self.context.look(group.key[0])
            if self._closed or self.groups.get(group.key) is not group:
                raise TransportError("the channels are closed")

        _, end = self._dialled(key_of(group.key, number), priority, look, FURTHER)
        if not self.closed:
            group.starts(number, end)
        else:
            end.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def _dialled(
        self, key: tuple[int, str], priority: int, look: Callable[[], object], seconds: float
    ) -> tuple[Any, Any]:
        """Our connection of a stream: a socket; and that, or a Tls over it."""
        me, (rank, purpose), number = self.context, key, lead_of(key)[1]
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.01, deadline - time.monotonic())
            if number:
                link = self.paths.connect(rank, number, me.hello(purpose, rank), left, look)
            else:
                link = connect(("tcp", *self.addresses[rank]), me.key, me.hello(purpose, rank), left, look)
            tuned(link)
            self._controlled(link, rank)
            mark(link, priority)
            end = self._secured(link, rank, purpose, deadline, look) if me.encrypt else link
            if end is not None:
                return link, end

    def _streams(self, key: tuple[int, str], end: Any) -> Streams:
        if key[0] in self.healing:
            return self.groups.made(key, self.mender.streams(key, end))
        return TlsStreams(end) if self.context.encrypt else SocketStreams(end, receive=False)

    def _secured(
        self, link: Connection, rank: int, purpose: str, deadline: float, look: Callable[[], object]
    ) -> Tls | None:
        """None: the other side ended it, as it must where one of the two is slow; another attempt may do."""
        me = self.context
        host, port = self.addresses[rank]
        try:
            key = encryption.connection_key(link.key, purpose, me.rank, rank)
            left = max(0.01, deadline - time.monotonic())
            return encryption.secure(link, key, left, look, self.ciphers[rank])
        except TransportError as why:
            link.close()
            until = time.monotonic() + VERDICT
            while time.monotonic() < until:  # has that rank been lost?  Then this raises it
                look()
                time.sleep(0.05)
            if isinstance(why, encryption.SilentEnd) and time.monotonic() < deadline:
                return None
            raise type(why)(f"tcp:{host}:{port} (rank {rank}): {why}") from None
        except BaseException:
            link.close()
            raise

    def arrived(self, channels: TcpChannels) -> list[int]:
        """The members whose streams wait until `channels` open theirs."""
        with self._lock:
            purpose = self.purpose + channels.name
            return [i for i, rank in enumerate(channels.members) if (rank, purpose) in self._arrived]

    def forget(self, held: Held) -> None:
        """Nobody waits for these streams any more: those that come are closed."""
        with self._lock:
            for rank in held.members:
                key = rank, self.purpose + held.name
                self._priorities.pop(key, None)
                if rank in self.healing:
                    self._forget_streams(key)
                arrived, _ = self._arrived.pop(key, (None, None))
                if arrived is not None:
                    arrived.close()
                elif rank != self.context.rank:
                    waiting = self._waiting.pop(key, None)
                    if waiting is not None or rank not in held.opened:
                        self._too_late[key] = None
            while len(self._too_late) > TOO_LATE:
                self._too_late.pop(next(iter(self._too_late)))

    def _forget_streams(self, key: tuple[int, str]) -> None:
        self.groups.forget(key)
        self._over[key] = None
        while len(self._over) > TOO_LATE:
            self._over.pop(next(iter(self._over)))
        for number in range(len(LETTERS)):
            each = key_of(key, number)
            self.mender.forget(each)
            if number and each in self._arrived:
                self._arrived.pop(each)[0].close()

    def channels(self, name: str, index: int, members: Sequence[int]) -> TcpChannels:
        return TcpChannels(self, name, members)

    def close(self) -> None:
        for listener in (self._listener, *self._further):
            if listener is not None:
                listener.close()
        for held in list(self.held):
            held.close()
        with self._lock:
            self._closed = True
            for stream, _ in self._arrived.values():
                stream.close()
            self._arrived.clear()
        self.mender.close()


def tuned(link: socket.socket) -> socket.socket:
    wish(link, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # the peer is gone: the first call on it says so
        if link.getpeername()[0] == link.getsockname()[0]:  # not every system allows it
            wish(link, socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOCAL_CONGESTION)
    return link


def mark(link: socket.socket, priority: int) -> None:
    """Let the system send this lane's packets, also those that only confirm, before those of lower ones."""
    if priority:
        wish(link, socket.SOL_SOCKET, socket.SO_PRIORITY, INTERACTIVE if priority > 0 else BULK)
