"""Hosts at a switch whose cables have a rate each way and a delay: for a kernel without netem.

    python -m hocket.system.namespaces.cables RATE DELAY FD...          forwards frames until it is ended

The switch is this program, and each host's cable a TAP device of it.  A frame leaves its host's port when all frames
before it have left, and its first byte is `delay` later at the port of the host that it goes to, where it waits for the
frames before it, too.  No frame is lost: queues have no end.  Acknowledgements alone wait for nobody, as in the fair
queues of real hosts: behind data, both ways, they come so late that plain sockets need 1.2 times as long for 4 MB each
way as for 4 MB one way.  So a message takes what Hockney's model says, for whatever program sends it.  Needs root and
iproute2.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from hocket.errors import ArgumentError
from hocket.system.namespaces.hosts import CABLE, PREFIX, _remove, ip
from hocket.system.namespaces.switch import NET
from hocket.system.parent import die_with

MTU = 16_000
"""Bytes of a packet: few enough packets for a program in Python, 12.5 MB/s in and out of 8 hosts."""
TCP = {"congestion_control": "reno", "wmem": "4096 16384 131072"}
"""It sends until something is lost (BBR, which some systems have, holds back up to a fifth), and a connection has so
many bytes on its way that 8 of them to one host wait for less than the 200 ms after which TCP believes them lost."""
TUN = "/dev/net/tun"
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
TURN = 16
"""Frames of a host that are read before the others' are."""
ETHERNET, IPV4, ACK = 14, b"\x08\x00", 0x10
"""Bytes of a header, a kind of packet, and a segment's flags."""
HEADERS = ETHERNET + 60 + 60
"""Bytes of a frame without data, at most."""
Event = tuple[float, int, bool, int, bytes]
"""When, a number that orders what is at the same time, has it passed the port of its target, the target, the frame."""


@contextlib.contextmanager
def cables(count: int, rate: float, delay: float) -> Iterator[list[str]]:
    """The names of so many hosts, until the block ends.  `rate`: bytes a second; `delay`: seconds one way."""
    names = [f"{PREFIX}{os.getpid()}{letter}" for letter in "abcdefgh"[:count]]
    ends: list[int] = []
    with contextlib.ExitStack() as stack:
        for i, name in enumerate(names):
            stack.callback(_remove, name)
            ip("netns", "add", name)
            ends.append(_end(f"hk{os.getpid()}{i}"))
            stack.callback(os.close, ends[-1])
            ip("link", "set", f"hk{os.getpid()}{i}", "netns", name, "name", CABLE, "mtu", str(MTU))
            ip("-n", name, "addr", "add", f"{NET}{i + 1}/24", "dev", CABLE)
            for device in ("lo", CABLE):
                ip("-n", name, "link", "set", device, "up")
            for setting, value in TCP.items():
                ip("netns", "exec", name, "sh", "-c", f"echo {value} >/proc/sys/net/ipv4/tcp_{setting}")
        words = [sys.executable, "-m", __name__, str(rate), str(delay), *map(str, ends)]
        switch = subprocess.Popen(words, pass_fds=ends, preexec_fn=die_with(os.getpid()))
        stack.callback(switch.wait)
        stack.callback(switch.kill)
        yield names


def _end(name: str) -> int:
    """The switch's end of a new cable."""
    try:
        end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    except OSError as why:
        raise ArgumentError(f"cables need {TUN}: {why.strerror}; load it with `modprobe tun`") from None
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return end


class Ports:
    """The ports of the switch, without I/O: frames that come, and frames that go."""

    def __init__(self, count: int, rate: float, delay: float) -> None:
        self.rate, self.delay = rate, delay
        self._left, self._came = [-math.inf] * count, [-math.inf] * count
        """When what each host has sent has left its port, and when what goes to it has passed its port."""
        self._hosts: dict[bytes, int] = {}
        """By hardware address."""
        self._events: list[Event] = []
        self._number = 0

    def take(self, now: float, source: int, frame: bytes) -> None:
        """This host sends a frame."""
        self._hosts[frame[6:12]] = source
        known = self._hosts.get(frame[:6])
        if known is not None and acknowledges(frame):
            self._add(now + self.delay, True, known, frame)
            return
        begins = max(now, self._left[source])
        self._left[source] = begins + len(frame) / self.rate
        for target in range(len(self._left)) if known is None else (known,):
            if target != source:
                self._add(begins + self.delay, False, target, frame)

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Hosts, and frames that they have now."""
        while self._events and self._events[0][0] <= now:
            at, _, passed, target, frame = heappop(self._events)
            if passed:
                yield target, frame
            else:
                self._came[target] = max(at, self._came[target]) + len(frame) / self.rate
                self._add(self._came[target], True, target, frame)

    @property
    def next(self) -> float | None:
        """When there is something to do, if nothing comes."""
        return self._events[0][0] if self._events else None

    def _add(self, at: float, passed: bool, target: int, frame: bytes) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, passed, target, frame))


def acknowledges(frame: bytes) -> bool:
    """Is it a segment of TCP without data, which neither opens nor closes?"""
    if len(frame) > HEADERS or frame[12:14] != IPV4 or frame[23] != socket.IPPROTO_TCP:
        return False
    header, total = 4 * (frame[ETHERNET] & 15), int.from_bytes(frame[16:18], "big")
    segment = frame[ETHERNET + header :]
    return segment[13] == ACK and total == header + 4 * (segment[12] >> 4)


def forward(ports: Ports, ends: Sequence[int]) -> None:
    """Until the process is ended."""
    with contextlib.suppress(PermissionError):  # else it waits for a core, and the frames with it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    number = {end: i for i, end in enumerate(ends)}
    while True:
        wait = None if ports.next is None else max(0.0, ports.next - time.monotonic())
        for end in select.select(ends, [], [], wait)[0]:
            with contextlib.suppress(BlockingIOError):
                for _ in range(TURN):
                    ports.take(time.monotonic(), number[end], os.read(end, MTU + 64))
        for target, frame in ports.due(time.monotonic()):
            with contextlib.suppress(OSError):  # a host whose cable is down
                os.write(ends[target], frame)


if __name__ == "__main__":
    about, descriptors = sys.argv[1:3], [*map(int, sys.argv[3:])]
    forward(Ports(len(descriptors), *map(float, about)), descriptors)
