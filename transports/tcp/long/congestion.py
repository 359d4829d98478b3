"""Which congestion control a long connection has, and what the system's windows bound; docs/long-links.md says why.

BBR sends at the rate that it measures.  Cubic and Reno halve theirs at each loss: at 100 ms and 0.1 % lost a connection
of theirs carries 4 of 100 Mbit/s, BBR's 87.  Who is not root may choose what tcp_allowed_congestion_control names.
"""

from __future__ import annotations

import errno
import functools
import logging
import socket

from hocket.system.machine import tcp_info

log = logging.getLogger("hocket.transports")
AUTO, SYSTEM, BEST = "auto", "system", "bbr"
LONG = 0.002
"""Seconds of a round trip from which on a link is long.  Within a LAN the system's own control stays as it is."""
BY_LOSS = ("bic", "cubic", "highspeed", "htcp", "hybla", "illinois", "reno", "scalable", "veno", "westwood", "yeah")
"""Controls that take a loss for a queue that is full."""
FOLDER = "/proc/sys/net/ipv4/"


def setting(name: str) -> str:
    """A setting of this network namespace, as net.ipv4.NAME; "": the system does not say."""
    try:
        with open(FOLDER + name) as file:
            return " ".join(file.read().split())
    except OSError:
        return ""


def known() -> list[str]:
    return sorted(setting("tcp_available_congestion_control").split())


def window(which: str) -> int:
    """The most bytes that the system lets a connection keep for sending (wmem), or for who reads (rmem); 0: unknown."""
    words = setting(f"tcp_{which}").split()
    return int(words[2]) if len(words) == 3 else 0


def round_trip(link: socket.socket) -> float:
    """Seconds, as the system has measured; 0: it has not."""
    return tcp_info(link.fileno()).get("rtt", 0) / 1e6


def control_of(link: socket.socket) -> str:
    try:
        return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    except OSError:
        return ""


def control(link: socket.socket, wanted: str) -> str:
    """Give a connection between hosts its control.  "", or why it is not `wanted`, or BBR where it is AUTO.

    AUTO: BBR where the round trip is long and the system lets this process have it.  SYSTEM: nothing is chosen.
    """
    if wanted == SYSTEM or wanted == AUTO and round_trip(link) < LONG:
        return ""
    name = BEST if wanted == AUTO else wanted
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as why:
        refused = _refusal(name, why.errno or 0)
        if refused and wanted != AUTO:
            _warn(refused)
        return refused
    return ""


def missing() -> str:
    """Why a connection of this process could not have BBR; "": it could."""
    with socket.socket() as link:
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, BEST.encode())
        except OSError as why:
            return _refusal(BEST, why.errno or 0)
    return ""


def _refusal(name: str, number: int) -> str:
    if number == errno.ENOENT:
        return f"this system has no congestion control {name!r}; it has {', '.join(known())}"
    if number in (errno.EPERM, errno.EACCES):
        allowed = setting("tcp_allowed_congestion_control")
        return f"{name} is only for root: net.ipv4.tcp_allowed_congestion_control is {allowed}"
    return ""  # the peer is gone, or these sockets have no choice: MPTCP's may not


@functools.cache
def _warn(refused: str) -> None:
    log.warning("hocket: HOCKET_CONGESTION: %s; connections keep the system's (%s)",
                refused, setting("tcp_congestion_control"))  # fmt: skip
