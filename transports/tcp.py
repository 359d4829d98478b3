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
from collections.abc import Callable, Sequence
from typing import Any

from hocket.transports.base import Context
from hocket.transports.dialled import DialledLane
from hocket.transports.handshake import Hello, connect
from hocket.transports.shm import boot_id
from hocket.transports.stream import SocketChannels

PURPOSE = "tcp:"
LOCAL_CONGESTION = b"cubic"
"""For connections inside a host: bbr, some systems' default, paces what has no need of it."""


class TcpTransport:
    """Streams between any two ranks that have a route."""

    name = "tcp"

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lock = threading.Lock()
        self._arrived: dict[tuple[int, str], socket.socket] = {}
        self._waiting: dict[tuple[int, str], SocketChannels] = {}
        self._too_late: set[tuple[int, str]] = set()
        """Streams still on their way to lanes that have been closed."""
        place: Any = ("tcp", context.host, context.ports or 0)
        self._listener = context.listen(place, self._on_peer)
        self._addresses: dict[int, tuple[str, int]] = {}
        self.lanes: list[TcpLane] = []

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
                self._too_late.discard(key)
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

    def forget(self, channels: Sequence[SocketChannels]) -> None:
        """Nobody waits for these any more."""
        with self._lock:
            keys = {key for key, waiting in self._waiting.items() if waiting in channels}
            self._too_late |= keys
            for key in keys:
                del self._waiting[key]

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

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        channels = self.transport.open(self.members[peer], self.name, self.look)
        self.channels.append(channels)
        return channels.send, channels.recv

    def close(self) -> None:
        self.transport.forget(self.channels)
        for channels in self.channels:
            channels.close()
        self.channels.clear()
        super().close()


def network_id() -> str:
    """The same on two processes only if they share a loopback interface: one kernel, and one network namespace."""
    return f"{boot_id()}:{os.stat('/proc/self/ns/net').st_ino}"


def tuned(link: socket.socket) -> socket.socket:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if link.getpeername()[0] == link.getsockname()[0]:
        with contextlib.suppress(OSError):  # not every system allows it
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, LOCAL_CONGESTION)
    return link
