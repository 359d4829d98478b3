"""The tcp transport: for each pair of ranks and lane one stream in each direction, opened at first use.

Each rank listens on one port of the interface that routes to the other ranks (never on all of them, and never on
loopback if another host takes part).  Who sends dials; every connection proves the job's key first, so a stranger,
a port scanner or a stale process is closed and disturbs nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from hocket.transports.base import Context
from hocket.transports.dialled import DialledLane
from hocket.transports.handshake import Hello, connect
from hocket.transports.shm import boot_id
from hocket.transports.stream import SocketChannels

PURPOSE = "tcp:"
TOO_LATE = 10_000
"""Streams that are remembered as too late; one that comes after so many others is kept until the end."""
LOCAL_CONGESTION = b"cubic"
"""For connections inside a host: bbr, some systems' default, paces what has no need of it."""


class TcpTransport:
    """Streams between any two ranks that have a route."""

    name = "tcp"

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lock = threading.RLock()  # a lane that is dropped closes itself, also in the middle of what holds it
        self._arrived: dict[tuple[int, str], socket.socket] = {}
        self._waiting: dict[tuple[int, str], SocketChannels] = {}
        self._too_late: dict[tuple[int, str], None] = {}
        """Streams that may still be on their way to lanes that have been closed, the oldest first."""
        place: Any = ("tcp", context.host, context.ports or 0)
        self._listener = context.listen(place, self._on_peer)
        self._addresses: dict[int, tuple[str, int]] = {}
        self.lanes: weakref.WeakSet[TcpLane] = weakref.WeakSet()

    @staticmethod
    def available() -> str | None:
        return None

    def offer(self) -> dict[str, Any]:
        _, host, port = self._listener.address  # type: ignore[misc]
        return {"host": host, "port": port, "network": network_id()}

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        """A loopback address is no road to another host; the connection itself is made at first use."""
        refusals: list[str | None] = []
        for offer in offers:
            if not offer:
                refusals.append("that rank offers no TCP address")
            elif ipaddress.ip_address(offer["host"]).is_loopback and offer["network"] != network_id():
                refusals.append(f"it listens on {offer['host']}, which is loopback, on another host or in a container")
            else:
                refusals.append(None)
        self._addresses.update({r: (o["host"], o["port"]) for r, o in enumerate(offers) if o})
        return refusals

    def _on_peer(self, link: socket.socket, hello: Hello) -> None:
        key = hello.rank, hello.purpose
        with self._lock:
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting.receive_from(tuned(link))
            elif hello.purpose.startswith(PURPOSE) and key not in self._arrived and key not in self._too_late:
                self._arrived[key] = link
            else:
                self._too_late.pop(key, None)
                link.close()

    def open(self, rank: int, lane: str, look: Callable[[], object]) -> SocketChannels:
        """Channels to and from `rank`: ours over the stream that we dial, theirs over the one that they dial.

        So nobody waits here until the other makes the same call: its reactor answers.  `look` is called between
        attempts, and raises if there is no more use in trying.
        """
        me = self.context
        hello = me.hello(PURPOSE + lane, rank)
        link = connect(("tcp", *self._addresses[rank]), me.key, hello, me.timeout, look)
        channels = SocketChannels(tuned(link), receive=False)
        key = rank, PURPOSE + lane
        with self._lock:
            if key in self._arrived:
                channels.receive_from(tuned(self._arrived.pop(key)))
            else:
                self._waiting[key] = channels
        return channels

    def forget(self, lane: TcpLane) -> None:
        """Nobody waits for its streams any more: those that come are closed."""
        with self._lock:
            for rank in lane.members:
                key = rank, PURPOSE + lane.name
                arrived = self._arrived.pop(key, None)
                if arrived is not None:
                    arrived.close()
                elif rank != self.context.rank and (self._waiting.pop(key, None) or rank not in lane.opened):
                    self._too_late[key] = None
            while len(self._too_late) > TOO_LATE:
                self._too_late.pop(next(iter(self._too_late)))

    def lane(self, name: str, index: int, members: Sequence[int]) -> TcpLane:
        return TcpLane(self, name, members)

    def close(self) -> None:
        self._listener.close()
        for lane in list(self.lanes):
            lane.close()
        with self._lock:
            for link in self._arrived.values():
                link.close()
            self._arrived.clear()


class TcpLane(DialledLane):
    """One lane's streams."""

    def __init__(self, transport: TcpTransport, name: str, members: Sequence[int]) -> None:
        super().__init__(transport, name, members)
        self.transport = transport
        self.channels: list[SocketChannels] = []
        self.opened: set[int] = set()
        """Members, by world rank."""

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        channels = self.transport.open(self.members[peer], self.name, self.look)
        self.opened.add(self.members[peer])
        self.channels.append(channels)
        return channels.send, channels.recv

    def close(self) -> None:
        self.transport.forget(self)
        for channels in self.channels:
            channels.close()
        self.channels.clear()
        super().close()

    def __del__(self) -> None:
        """Of a communicator that was dropped: what was sent still arrives, as the system delivers it."""
        if hasattr(self, "opened"):
            self.close()


def network_id() -> str:
    """The same on two processes only if they share a loopback interface: one kernel, and one network namespace."""
    return f"{boot_id()}:{os.stat('/proc/self/ns/net').st_ino}"


def tuned(link: socket.socket) -> socket.socket:
    with contextlib.suppress(OSError):  # the peer is gone: the first call on it says so
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if link.getpeername()[0] == link.getsockname()[0]:  # not every system allows it
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOCAL_CONGESTION)
    return link
