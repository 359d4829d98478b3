"""Hosts at one switch, whose cables can be pulled: network namespaces with a bridge between them.

Needs root and iproute2.  A pulled cable is what it is on a real host: packets get lost, and nobody says so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from hocket.system.namespaces.hosts import CABLE, PREFIX, _remove, ip, shape

NET = "10.79.0."
"""The hosts are .1, .2, ..., as `hosts.V4` has it."""


class Switch:
    """`hosts`: the names of the namespaces."""

    def __init__(self, hosts: list[str], own: str) -> None:
        self.hosts, self._own = hosts, own

    def pull(self, host: int) -> None:
        """This host reaches nobody, and nobody reaches it."""
        self._set(host, "down")

    def plug(self, host: int) -> None:
        self._set(host, "up")

    def reset(self, host: int) -> None:
        """Both ends of its TCP connections with other hosts hear that it is over, as from a firewall that forgot it."""
        others = "state", "connected", "not", "dst", f"{NET}{host + 1}"
        subprocess.run(["ip", "netns", "exec", self.hosts[host], "ss", "-K", *others], check=True, capture_output=True)

    def _set(self, host: int, how: str) -> None:
        ip("-n", self._own, "link", "set", f"p{host}", how)


@contextlib.contextmanager
def switch(count: int, rate: str | None = None, letters: str = "sabcdefgh") -> Iterator[Switch]:
    """So many hosts, until the block ends.  `rate`: of each one's cable, in tc's words.

    `letters`: the ends of the namespaces' names, for a process that has several such networks at once.
    """
    taken = ip("netns", "list").split()
    free = [name for letter in letters if (name := f"{PREFIX}{os.getpid()}{letter}") not in taken]
    own, *names = free[: count + 1]
    try:
        for name in (own, *names):
            ip("netns", "add", name)
        ip("-n", own, "link", "add", "bridge", "type", "bridge")
        ip("-n", own, "link", "set", "bridge", "up")
        for i, name in enumerate(names):
            ip("link", "add", f"p{i}", "netns", own, "type", "veth", "peer", "name", CABLE, "netns", name)
            ip("-n", own, "link", "set", f"p{i}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{NET}{i + 1}/24", "dev", CABLE)
            for device in ("lo", CABLE):
                ip("-n", name, "link", "set", device, "up")
            if rate is not None:
                shape(name, rate)
        yield Switch(names, own)
    finally:
        for name in (own, *names):
            _remove(name)
