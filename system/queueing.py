"""The system's queues for what leaves by an interface (`tc qdisc`), asked of the kernel by netlink."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

KNOWS = ("ets", "fq", "mqprio", "pfifo_fast", "prio", "taprio")
"""Disciplines with bands: packets with a higher SO_PRIORITY go first.  (fq has them since Linux 6.7.)"""
EMPTY = "noqueue"
_GETADDR, _GETQDISC, _ERROR, _DONE = 22, 38, 2, 3
_REQUEST_DUMP = 0x301
_ADDRESS, _LOCAL, _KIND = 1, 2, 1
_HEADER, _ADDR, _TC = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=BBHiIII")
Attributes = dict[int, bytes]


def queueing(address: str) -> str:
    """For people: which interface has this local address, its disciplines, and whether lanes' priorities count there.

    "" where the kernel does not say.
    """
    with contextlib.suppress(OSError, struct.error):
        interface = _interface(ipaddress.ip_address(address.partition("%")[0]).packed)
        if interface is not None:
            kinds = [kind for index, kind in _disciplines() if index == interface]
            disciplines = ", ".join(dict.fromkeys(kinds)) or "unknown"
            return f"{socket.if_indextoname(interface)} ({disciplines}): {verdict(kinds)}"
    return ""


def verdict(kinds: list[str]) -> str:
    """Does an interface with these disciplines send packets of a higher priority first?"""
    if any(kind in KNOWS for kind in kinds):
        return "packets of lanes above 0 go first"
    if kinds == [EMPTY]:
        return "nothing queues here"
    return f"ignores the priority of lanes; {', '.join(KNOWS[1:5])} would not (tc qdisc)"


def _interface(packed: bytes) -> int | None:
    for body, attributes in _dump(_GETADDR, _ADDR.pack(0, 0, 0, 0, 0), _ADDR.size):
        if packed in (attributes.get(_LOCAL), attributes.get(_ADDRESS)):
            return int(_ADDR.unpack(body)[4])
    return None


def _disciplines() -> Iterator[tuple[int, str]]:
    """(interface, discipline), those inside others too."""
    for body, attributes in _dump(_GETQDISC, _TC.pack(0, 0, 0, 0, 0, 0, 0), _TC.size):
        yield _TC.unpack(body)[3], attributes.get(_KIND, b"").rstrip(b"\0").decode()


def _dump(kind: int, ask: bytes, size: int) -> Iterator[tuple[bytes, Attributes]]:
    """The kernel's answers: a struct of `size` bytes, and the attributes behind it."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(1.0)
        link.sendto(_HEADER.pack(_HEADER.size + len(ask), kind, _REQUEST_DUMP, 1, 0) + ask, (0, 0))
        while True:
            data = link.recv(1 << 16)
            while data:
                length, what, *_ = _HEADER.unpack_from(data)
                if what == _DONE:
                    return
                if what == _ERROR:
                    number = -struct.unpack_from("=i", data, _HEADER.size)[0]
                    raise OSError(number, os.strerror(number))
                yield data[_HEADER.size : _HEADER.size + size], _attributes(data[_HEADER.size + size : length])
                data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Attributes:
    attributes = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        attributes[kind] = data[4:length]
        data = data[max(4, (length + 3) & ~3) :]
    return attributes
