"""The verbs transport: RDMA between ranks whose devices reach each other, over InfiniBand or RoCE.

Which device, port and address is used is found out, or said by HOCKET_RDMA (device[:port[:GID index]]).  Two ranks tell
each other their queue pairs over a TCP connection (connections.py), which stays open, so that a process that dies is
noticed at once.  That RDMA works between the two is tested: a message must cross before the first communicator is made.

Cost of a channel: 1 MiB on each side, registered; a completion queue; three queue pairs on each side.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from hocket.control.handshake import Hello
from hocket.errors import ArgumentError, TransportError
from hocket.transports.base import Context, Traits
from hocket.transports.dialled import DialledChannels
from hocket.transports.verbs.channels import OFFER_MIN
from hocket.transports.verbs.connections import PURPOSE, Arrival, Incoming, Outgoing
from hocket.transports.verbs.device import devices, library
from hocket.transports.verbs.port import choose

PROBE = "probe"


class VerbsTransport:
    """Channels to all ranks that this rank's port reaches."""

    name = "verbs"
    traits = Traits(polled=True, segment=1 << 20)
    """Segments long enough that their pieces (protocol.h) follow each other without a gap."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.port = choose(context.rdma)
        self.device = self.port.device
        self.unclosed: set[VerbsChannels] = set()
        self._lock = threading.Lock()
        self._addresses: dict[int, dict[str, Any]] = {}
        self._readers: dict[tuple[int, str], Incoming] = {}
        self._probes: weakref.WeakSet[Incoming] = weakref.WeakSet()
        place: Any = ("tcp", context.host, context.ports or 0)
        self._listener = context.listen(place, self._on_peer)

    @staticmethod
    def available() -> str | None:
        why = library()
        if why:
            return why
        try:
            names = devices()
        except OSError as error:
            return f"this kernel has no RDMA ({error.strerror})"
        return None if names else "there is no RDMA device"

    @staticmethod
    def about() -> str:
        """For `hocket doctor`."""
        from hocket.transports.verbs import gpudirect

        try:
            port = choose(os.environ.get("HOCKET_RDMA", ""))
            words = f"{port.text}, {', '.join(dict.fromkeys(family for family, *_ in port.gids))}"
        except (ArgumentError, TransportError) as why:
            words = f"but no port can be used: {why}"
        return f"({words}; GPUDirect: {gpudirect.refusal() or 'offered by the drivers'})"

    def offer(self) -> dict[str, Any]:
        _, host, port = self._listener.address  # type: ignore[misc]
        return {"host": host, "port": port, **self.port.address}

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        """Connect to every rank as for a channel, and let a message cross."""
        refusals: list[str | None] = [None] * len(offers)
        for rank, offer in enumerate(offers):
            if not offer:
                refusals[rank] = "that rank offers no RDMA port"
            elif rank != self.context.rank:
                self._addresses[rank] = offer
                try:
                    outgoing = Outgoing(self, rank, PROBE, self.context.look)
                    if not outgoing.writer.close():
                        refusals[rank] = f"connected to it from {self.port.text}, but no message came across"
                    outgoing.close()
                except TransportError as error:
                    refusals[rank] = f"{self.port.text}: {error}"
        return refusals

    def detail(self, rank: int) -> str:
        """For people: the devices, and how long messages come."""
        way = self.port.way(self._addresses[rank])
        keys = "through windows" if self.device.windows else "registered one by one, as the device has no windows"
        return f"{self.port.text}, {way[0] if way else ''}; long messages are not copied: {keys}"

    def address_of(self, rank: int) -> dict[str, Any]:
        return self._addresses[rank]

    def _on_peer(self, sock: socket.socket, hello: Hello) -> None:
        """A writer has come: on the reactor's thread."""
        if not hello.purpose.startswith(PURPOSE):
            sock.close()
            return
        name = hello.purpose.removeprefix(PURPOSE)
        Arrival(self, sock, lambda: self.incoming(hello.rank, name), name == PROBE)

    def incoming(self, rank: int, name: str) -> Incoming:
        """The reading end of a channel: whoever needs it first, we or the writer, makes it."""
        if name == PROBE:
            reader = Incoming(self.device)
            self._probes.add(reader)
            return reader
        with self._lock:
            return self._readers.setdefault((rank, name), Incoming(self.device))

    def forget(self, name: str) -> None:
        with self._lock:
            gone = [key for key in self._readers if key[1] == name]
            closed = [self._readers.pop(key) for key in gone]
        for each in closed:
            each.close()

    def channels(self, name: str, index: int, members: Sequence[int]) -> VerbsChannels:
        return VerbsChannels(self, name, members)

    def close(self) -> None:
        self._listener.close()
        for channels in list(self.unclosed):
            channels.close()
        for each in [*self._readers.values(), *self._probes]:
            each.close()
        self._readers.clear()
        with contextlib.suppress(TransportError):
            self.device.close()


class VerbsChannels(DialledChannels):
    """The channels of one communicator."""

    pin_from = OFFER_MIN

    def __init__(self, transport: VerbsTransport, name: str, members: Sequence[int]) -> None:
        super().__init__(name, members)
        self.transport = transport
        self.outgoing: list[Outgoing] = []
        transport.unclosed.add(self)

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        rank = self.members[peer]
        outgoing = Outgoing(self.transport, rank, self.name, self.look)
        self.outgoing.append(outgoing)
        reader = self.transport.incoming(rank, self.name).reader
        reader.stand_beside(outgoing.writer)
        return outgoing.writer.capsule, reader.capsule

    def pin(self, address: int, nbytes: int, owner: object) -> bool:
        """Register these bytes while `owner` lives, so that they need not be copied; see `device.Device.pin`."""
        return self.transport.device.pin(address, nbytes, owner)

    def close(self) -> None:
        for outgoing in self.outgoing:
            outgoing.close()
        self.outgoing.clear()
        self.transport.forget(self.name)
        self.transport.unclosed.discard(self)
