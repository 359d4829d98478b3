"""Which machine this process is on, its addresses, and where in it a folder for sockets can be made."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping

from hocket.errors import TransportError

TCP_INFO = {
    "retransmits": (2, 1), "probes": (3, 1), "last_data_recv": (52, 4), "last_ack_recv": (56, 4), "rtt": (68, 4),
    "total_retrans": (100, 4), "bytes_acked": (120, 8), "min_rtt": (148, 4), "busy_time": (168, 8),
    "rwnd_limited": (176, 8), "sndbuf_limited": (184, 8),
}  # fmt: skip
"""Places and bytes of numbers in `struct tcp_info` (linux/tcp.h, without tcpi_); a kernel before 4.10, and an emulator,
give fewer."""

USUAL = ("/tmp", "/var/tmp", "/dev/shm")
"""The last is memory, and can be written in most containers whose root is read-only."""
LONGEST = 75
"""Bytes of the path of such a folder: a socket's path, which lies in a folder below it, has at most 107."""


def wish(sock: socket.socket, level: int, option: int, value: int | bytes) -> None:
    """Set an option of a socket where the system has it: MPTCP's sockets refuse some, and a peer may be gone."""
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, value)


@contextlib.contextmanager
def same_socket(fd: int) -> Iterator[socket.socket]:
    """A second handle of the socket with this number, for the block.

    Another thread may close it, and its number be given to a file, at any time.  OSError: it is no socket (any more).
    """
    own = os.dup(fd)
    try:
        same = socket.socket(fileno=own)
    except OSError:
        os.close(own)  # a socket that could not be made has not taken it
        raise
    with same:
        yield same


def tcp_info(fd: int) -> dict[str, int]:
    """The kernel's numbers about a connection, by the names of `TCP_INFO`; those alone that this system tells.

    Empty where it is no TCP connection (any more).  Cost: three system calls.
    """
    try:
        with same_socket(fd) as same:
            told = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    except OSError:
        return {}
    return {
        name: int.from_bytes(told[at : at + length], sys.byteorder)
        for name, (at, length) in TCP_INFO.items() if at + length <= len(told)
    }  # fmt: skip


@functools.cache
def boot_id() -> str:
    """The same on two processes only if one kernel runs both; the host's name where /proc/sys is not mounted."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


def clock_ahead() -> int:
    """Nanoseconds that this process's time namespace adds to the kernel's CLOCK_MONOTONIC."""
    with contextlib.suppress(OSError), open("/proc/self/timens_offsets") as file:
        for line in file:
            name, seconds, rest = line.split()
            if name == "monotonic":
                return int(seconds) * 1_000_000_000 + int(rest)
    return 0


@functools.cache
def counts_ticks() -> bool:
    """Does the kernel keep time by the cores' own counter?  Then those of all cores agree (clock.h)."""
    try:
        with open("/sys/devices/system/clocksource/clocksource0/current_clocksource") as file:
            return file.read() == "tsc\n"
    except OSError:
        return False


def loopback() -> str:
    """The address of this machine for itself: 127.0.0.1, or ::1 where there is no IPv4."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1"
    return "::1"


def free_port(host: str = "") -> tuple[str, int]:
    """For MASTER_ADDR and MASTER_PORT: a port of this machine on which nobody listens now."""
    host = host or loopback()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host.partition("%")[0], 0), family=family) as free:
        return host, free.getsockname()[1]


def numeric(place: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """The address of a socket's name; with the interface (fe80::1%eth0), where the address says nothing without it."""
    link = place[3] if len(place) == 4 else 0
    address = place[0].partition("%")[0]
    return f"{address}%{socket.if_indextoname(link)}" if link else address


def local_end(host: str) -> str | None:
    """The address of this machine from which it reaches `host`; None if it has no way there."""
    try:
        addresses = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, place in addresses:
        with contextlib.suppress(OSError), socket.socket(family, kind) as sock:
            sock.connect(place)  # sends nothing, but chooses a local address
            return numeric(sock.getsockname())
    return None


def seen_here(host: str, own: str) -> str:
    """A neighbour's address on the link of our address `own`: interfaces have other names on each machine."""
    address, named, _ = host.partition("%")
    link = own.partition("%")[2]
    return f"{address}%{link}" if named and link else host


def temporary(environ: Mapping[str, str]) -> list[str]:
    """Folders in which a folder of ours may be made, best first: TMPDIR, if it is short enough, and the usual ones."""
    named = [os.path.abspath(environ["TMPDIR"])] if environ.get("TMPDIR") else []
    return [base for base in dict.fromkeys([*named, *USUAL]) if len(os.fsencode(base)) <= LONGEST]


def own_folder(environ: Mapping[str, str]) -> str:
    """The same on two processes of one kernel only if they see the same folder for temporary files."""
    for base in temporary(environ):
        with contextlib.suppress(OSError):
            status = os.stat(base)
            return f"{status.st_dev}:{status.st_ino}"
    return ""


def new_folder(prefix: str) -> str:
    """A new folder that only this user can enter, for sockets: in the first of `temporary` where it can be made."""
    refused = []
    for base in temporary(os.environ):
        try:
            return tempfile.mkdtemp(prefix=prefix, dir=base)  # 0700
        except OSError as why:
            refused.append(f"{base}: {why.strerror}")
    raise TransportError(
        f"no folder can be made ({'; '.join(refused)}): set TMPDIR to a short path where this user can write"
    )


@functools.cache
def maker() -> str:
    """The maker, by its own word: "GenuineIntel", "AuthenticAMD"; "" if it does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":")[1].strip() for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return ""
