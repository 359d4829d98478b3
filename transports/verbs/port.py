"""Which of this machine's RDMA ports is used, and how a peer's is reached from it."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from hocket.errors import ArgumentError, TransportError
from hocket.system.cores import card_nodes, node_of
from hocket.transports.verbs.device import Device, devices
from hocket.transports.verbs.ends import Path

FAMILIES = ("RoCE v2, IPv4", "RoCE v2, IPv6", "RoCE v2, link-local", "RoCE v1", "InfiniBand")
"""Kinds of addresses, best first: a routable one before one that stays in its Ethernet."""
SYSTEM = pathlib.Path("/sys/class/infiniband")


class Port:
    """A device's port and its addresses."""

    def __init__(self, device: Device, number: int, gid_index: int | None = None) -> None:
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
        """The address that a peer needs to find this port (JSON)."""
        return {"mtu": self.mtu, "lid": self.lid, "gids": [[f, gid.hex()] for f, _, gid in self.gids]}

    def way(self, theirs: dict[str, Any]) -> tuple[str, int, bytes] | None:
        """(family, our GID's index, their GID), of the best family that both have."""
        for family in FAMILIES:
            ours = [index for f, index, _ in self.gids if f == family]
            other = [bytes.fromhex(gid) for f, gid in theirs["gids"] if f == family]
            if ours and other:
                return family, ours[0], other[0]
        return None

    def path(self, theirs: dict[str, Any]) -> Path:
        """The path to them; TransportError if the two have no kind of address in common."""
        way = self.way(theirs)
        if way is None:
            both = [", ".join(dict.fromkeys(f for f, *_ in gids)) or "none" for gids in (self.gids, theirs["gids"])]
            raise TransportError(f"the ports have no kind of address in common (here {both[0]}; there {both[1]})")
        family, index, gid = way
        # Inside an InfiniBand subnet the LID is the address; a GID costs a longer header.
        near = family == FAMILIES[4] and any(mine[:8] == gid[:8] for f, _, mine in self.gids if f == family)
        lid = theirs["lid"] if family == FAMILIES[4] else 0
        return Path(self.number, -1 if near else index, gid, lid, min(self.mtu, theirs["mtu"]))

    @property
    def text(self) -> str:
        return f"{self.device.name} port {self.number}"


def wanted(text: str) -> tuple[str, int | None, int | None]:
    """device[:port[:GID index]], as HOCKET_RDMA says it."""
    name, *numbers = text.split(":")
    port, gid = ([int(n) for n in numbers] + [None, None])[:2]
    return name, port, gid


def choose(setting: str = "") -> Port:
    """The port to use: the one that was asked for, else the first that is active, of this rank's NUMA node if there is.

    TransportError says why none is.
    """
    name, number, gid_index = wanted(setting) if setting else ("", None, None)
    names = devices()
    if name and name not in names:
        raise ArgumentError(f"HOCKET_RDMA={setting}: no RDMA device {name}; known: {', '.join(names) or '(no device)'}")
    refused = []
    own, nodes = node_of(os.sched_getaffinity(0)), card_nodes()
    for each in [name] if name else sorted(names, key=lambda each: own >= 0 and nodes.get(each) != own):
        device = Device(each)
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
