"""The verbs transport: RDMA between ranks whose devices reach each other, over InfiniBand or RoCE.

Which device, port and address is used is found out, or said by HOCKET_RDMA (device[:port[:GID index]]).  Two ranks tell
each other their queue pairs over a TCP connection that proves the job's key, as RDMA itself proves nothing: a key to
memory goes to the one peer that may use it.  The connection stays open, so that a process that dies is noticed at
once.  That the road is open is tested: a message must cross it before the first communicator is made.

Cost of a channel: 1 MiB on each side, registered; a completion queue; three queue pairs on each side.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hocket.control.handshake import Hello, connect
from hocket.control.link import Link, Message
from hocket.errors import ArgumentError, TransportError
from hocket.transports.base import Context, Traits
from hocket.transports.dialled import DialledLane
from hocket.transports.verbs import rdma

PURPOSE = "verbs:"
PROBE = "probe"
QUEUE_PAIRS = 3
"""Of a channel: one for packets; long pieces of memory alternate between the others."""
LOOK = 0.05
"""Seconds between looks while a peer's answer is awaited."""
FAMILIES = ("RoCE v2, IPv4", "RoCE v2, IPv6", "RoCE v2, link-local", "RoCE v1", "InfiniBand")
"""Kinds of addresses, best first: a routable one before one that stays in its Ethernet."""
SYSTEM = Path("/sys/class/infiniband")


class Port:
    """A device's port and its addresses."""

    def __init__(self, device: rdma.Device, number: int, gid_index: int | None = None) -> None:
        self.device, self.number = device, number
        self.active, self.mtu, self.lid, entries = device.port(number)
        self.ethernet = self._said("link_layer") == "Ethernet"
        self.gids: list[tuple[str, int, bytes]] = []
        """(family, index, GID)"""
        for i in range(entries) if gid_index is None else [gid_index]:
            gid = device.gid(number, i)
            if any(gid[8:]):  # every entry in use has an interface's part
                self.gids.append((self._family(i, gid), i, gid))

    def _said(self, name: str) -> str:
        try:
            return (SYSTEM / self.device.name / "ports" / str(self.number) / name).read_text().strip()
        except OSError:
            return ""

    def _family(self, index: int, gid: bytes) -> str:
        if not self.ethernet:
            return FAMILIES[4]
        if self._said(f"gid_attrs/types/{index}") != "RoCE v2":
            return FAMILIES[3]
        if gid[:12] == bytes(10) + b"\xff\xff":
            return FAMILIES[0]
        return FAMILIES[2] if gid[:2] == b"\xfe\x80" else FAMILIES[1]

    @property
    def address(self) -> dict[str, Any]:
        """What a peer needs to find this port (JSON)."""
        return {"mtu": self.mtu, "lid": self.lid, "gids": [[f, gid.hex()] for f, _, gid in self.gids]}

    def way(self, theirs: dict[str, Any]) -> tuple[str, int, bytes] | None:
        """(family, our GID's index, their GID), of the best family that both have."""
        for family in FAMILIES:
            ours = [index for f, index, _ in self.gids if f == family]
            other = [bytes.fromhex(gid) for f, gid in theirs["gids"] if f == family]
            if ours and other:
                return family, ours[0], other[0]
        return None

    def path(self, theirs: dict[str, Any]) -> rdma.Path:
        """How to reach them; TransportError if the two have no kind of address in common."""
        found = self.way(theirs)
        if found is None:
            both = [", ".join(dict.fromkeys(f for f, *_ in gids)) or "none" for gids in (self.gids, theirs["gids"])]
            raise TransportError(f"the ports have no kind of address in common (here {both[0]}; there {both[1]})")
        family, index, gid = found
        # Inside an InfiniBand subnet the LID is the address; a GID costs a longer header.
        near = family == FAMILIES[4] and any(mine[:8] == gid[:8] for f, _, mine in self.gids if f == family)
        lid = theirs["lid"] if family == FAMILIES[4] else 0
        return rdma.Path(self.number, -1 if near else index, gid, lid, min(self.mtu, theirs["mtu"]))

    @property
    def text(self) -> str:
        return f"{self.device.name} port {self.number}"


def wanted(text: str) -> tuple[str, int | None, int | None]:
    """device[:port[:GID index]], as HOCKET_RDMA says it."""
    name, *numbers = text.split(":")
    port, gid = ([int(n) for n in numbers] + [None, None])[:2]
    return name, port, gid


def choose(setting: str = "") -> Port:
    """The port to use: the one that was asked for, else the first that is active.  TransportError says why none is."""
    name, number, gid_index = wanted(setting) if setting else ("", None, None)
    there = rdma.devices()
    if name and name not in there:
        raise ArgumentError(f"HOCKET_RDMA={setting}: no RDMA device {name}; there are {', '.join(there) or 'none'}")
    refused = []
    for each in [name] if name else there:
        device = rdma.Device(each)
        if number and number > device.ports:
            device.close()
            raise ArgumentError(f"HOCKET_RDMA={setting}: {each} has {device.ports} port{'s' * (device.ports > 1)}")
        for n in [number] if number else range(1, device.ports + 1):
            port = Port(device, n, gid_index)
            if port.active and port.gids:
                return port
            refused.append(f"{port.text} {'has no address' if port.active else 'is down'}")
        device.close()
    raise TransportError("; ".join(refused) or "there is no RDMA device")


class VerbsTransport:
    """Channels to all ranks that this rank's port reaches."""

    name = "verbs"
    traits = Traits(polled=True, segment=1 << 20)
    """Segments long enough that their pieces (protocol.h) follow each other without a gap."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.port = choose(context.rdma)
        self.device = self.port.device
        self.lanes: set[VerbsLane] = set()
        self._lock = threading.Lock()
        self._addresses: dict[int, dict[str, Any]] = {}
        self._readers: dict[tuple[int, str], Incoming] = {}
        self._probes: weakref.WeakSet[Incoming] = weakref.WeakSet()
        place: Any = ("tcp", context.host, context.ports or 0)
        self._listener = context.listen(place, self._on_peer)

    @staticmethod
    def available() -> str | None:
        why = rdma.library()
        if why:
            return why
        try:
            there = rdma.devices()
        except OSError as error:
            return f"this kernel has no RDMA ({error.strerror})"
        return None if there else "there is no RDMA device"

    @staticmethod
    def about() -> str:
        """For `hocket doctor`."""
        from hocket.transports.verbs import gpudirect

        try:
            port = choose(os.environ.get("HOCKET_RDMA", ""))
            found = f"{port.text}, {', '.join(dict.fromkeys(family for family, *_ in port.gids))}"
        except (ArgumentError, TransportError) as why:
            found = f"but no port can be used: {why}"
        return f"({found}; GPUDirect: {gpudirect.refusal() or 'offered by the drivers'})"

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
        found = self.port.way(self._addresses[rank])
        keys = "through windows" if self.device.windows else "registered one by one, as the device has no windows"
        return f"{self.port.text}, {found[0] if found else ''}; long messages are not copied: {keys}"

    def address_of(self, rank: int) -> dict[str, Any]:
        return self._addresses[rank]

    def _on_peer(self, sock: socket.socket, hello: Hello) -> None:
        """A writer has come: on the reactor's thread."""
        if not hello.purpose.startswith(PURPOSE):
            sock.close()
            return
        lane = hello.purpose.removeprefix(PURPOSE)
        Arrival(self, sock, lambda: self.incoming(hello.rank, lane), lane == PROBE)

    def incoming(self, rank: int, lane: str) -> Incoming:
        """The reading end of a channel: whoever needs it first, we or the writer, makes it."""
        if lane == PROBE:
            made = Incoming(self.device)
            self._probes.add(made)
            return made
        with self._lock:
            return self._readers.setdefault((rank, lane), Incoming(self.device))

    def forget(self, lane: str) -> None:
        with self._lock:
            gone = [key for key in self._readers if key[1] == lane]
            closed = [self._readers.pop(key) for key in gone]
        for each in closed:
            each.close()

    def lane(self, name: str, index: int, members: Sequence[int]) -> VerbsLane:
        return VerbsLane(self, name, members)

    def close(self) -> None:
        self._listener.close()
        for lane in list(self.lanes):
            lane.close()
        for each in [*self._readers.values(), *self._probes]:
            each.close()
        self._readers.clear()
        with contextlib.suppress(TransportError):
            self.device.close()


class Incoming:
    """The reading end of a channel, and the connection to its writer."""

    def __init__(self, device: rdma.Device) -> None:
        self.reader = rdma.Reader(device)
        self.link: Link | None = None
        self._lock = threading.Lock()

    def attach(self, link: Link, path: rdma.Path, offer: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            answer = self.reader.attach(path, offer)
            self.link = link
            return answer

    def close(self) -> None:
        with self._lock:
            self.reader.close()
        if self.link is not None:
            self.link.close()


class Arrival:
    """A writer's connection: it says what its queue pairs are, we answer with ours."""

    def __init__(
        self, transport: VerbsTransport, sock: socket.socket, find: Callable[[], Incoming], passing: bool
    ) -> None:
        self.transport, self.find, self.passing = transport, find, passing
        self.incoming: Incoming | None = None
        self.link = Link(transport.context.reactor, sock)
        self.link.on_message, self.link.on_end = self._answer, self._ended
        self.link.start()

    def _answer(self, message: Message) -> None:
        try:
            incoming = self.find()
            answer = incoming.attach(self.link, self.transport.port.path(message["address"]), message["offer"])
            self.incoming = incoming
            self.link.send({"answer": answer})
        except (TransportError, KeyError, TypeError, ValueError, OverflowError) as why:
            self.link.send({"refused": str(why)})
            self.link.close()

    def _ended(self, how: str) -> None:
        if self.incoming is not None:
            self.incoming.reader.lost()
            if self.passing:
                self.incoming.close()


class Outgoing:
    """The writing end of a channel, and the connection to its reader."""

    def __init__(
        self, transport: VerbsTransport, rank: int, lane: str, look: Callable[[], object] = lambda: None
    ) -> None:
        me, theirs = transport.context, transport.address_of(rank)
        deadline = time.monotonic() + me.timeout
        path = transport.port.path(theirs)
        place: Any = ("tcp", theirs["host"], theirs["port"])
        sock = connect(place, me.key, me.hello(PURPOSE + lane, rank), me.timeout, look)
        self._changed = threading.Event()
        self._said: Message | None = None
        self._ended_how = ""
        self.link = Link(me.reactor, sock)
        self.link.on_message, self.link.on_end = self._hear, self._ended
        self.writer = rdma.Writer(transport.device, QUEUE_PAIRS)
        try:
            me.reactor.soon(self.link.start)
            self.link.send({"address": transport.port.address, "offer": self.writer.offer})
            while not self._changed.wait(LOOK):
                look()
                if time.monotonic() > deadline:
                    raise TransportError(f"rank {rank} did not answer within {me.timeout:g} s")
            said: Message = self._said or {"refused": self._ended_how}
            if "answer" not in said:
                raise TransportError(f"rank {rank} refused: {said.get('refused')}")
            self.writer.connect(path, said["answer"])
        except BaseException:
            self.close()
            raise

    def _hear(self, message: Message) -> None:
        self._said = message
        self._changed.set()

    def _ended(self, how: str) -> None:
        self._ended_how = how
        self.writer.lost()
        self._changed.set()

    def close(self) -> None:
        self.writer.close()
        self.link.close()


class VerbsLane(DialledLane):
    """One lane's channels."""

    pin_from = rdma.OFFER_MIN

    def __init__(self, transport: VerbsTransport, name: str, members: Sequence[int]) -> None:
        super().__init__(transport, name, members)
        self.transport = transport
        self.outgoing: list[Outgoing] = []

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        rank = self.members[peer]
        outgoing = Outgoing(self.transport, rank, self.name, self.look)
        self.outgoing.append(outgoing)
        reader = self.transport.incoming(rank, self.name).reader
        reader.stand_beside(outgoing.writer)
        return outgoing.writer.capsule, reader.capsule

    def pin(self, address: int, nbytes: int, owner: object) -> bool:
        """Register these bytes while `owner` lives, so that they need not be copied; see `rdma.Device.pin`."""
        return self.transport.device.pin(address, nbytes, owner)

    def close(self) -> None:
        for outgoing in self.outgoing:
            outgoing.close()
        self.outgoing.clear()
        self.transport.forget(self.name)
        super().close()
