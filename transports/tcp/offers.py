"""The offers of ranks: where each listens, and the paths to it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from typing import Any

from hocket.system.machine import boot_id

PathEnds = tuple[str, tuple[str, int]]
"""A path to another rank: the address of this host's interface, and that rank's address and port there."""


def is_offer(value: Any) -> bool:
    """Did a rank write it that means well?"""
    try:
        ipaddress.ip_address(str(value["host"]))
        return isinstance(value["host"], str) and value["port"] in range(1, 65536) and isinstance(value["network"], str)
    except (ValueError, KeyError, TypeError):
        return False


def _is_path(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and is_offer({"host": value[0], "port": value[1], "network": ""})


def ways_to(first: tuple[str, int], offer: dict[str, Any], own: str, further: list[str]) -> list[PathEnds]:
    """The paths to the rank of this offer.  further: this host's addresses on further ones, "" where it has none."""
    theirs = offer.get("paths")
    both = zip(further, theirs[1:], strict=False) if isinstance(theirs, list) else ()
    return [(own, first), *((mine, (path[0], path[1])) for mine, path in both if mine and _is_path(path))]


def network_id() -> str:
    """The same on two processes only if they share a loopback interface: one kernel, and one network namespace."""
    with contextlib.suppress(OSError):
        return f"{boot_id()}:{os.stat('/proc/self/ns/net').st_ino}"
    return f"{boot_id()}:no /proc"
