"""Two hosts with long cables between them: network namespaces, a token bucket at each end, and a relay in the middle.

Needs root, iproute2 and gcc; all is gone when the block ends.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from hocket.system.namespaces.hosts import PREFIX, _remove, ip, remove_stale
from hocket.system.parent import die_with

ADDRESS = "10.93.{}.{}"
"""By cable and host, 1 or 2."""
RELAY = pathlib.Path(__file__).with_name("relay.c")
URGENT = ["sh", "-c", 'echo "$0" 2>&- >/proc/self/autogroup; exec nice -n "$0" "$@"', "-10"]
"""Words before a command: what else this machine does should not count.  Where the system shares time among sessions
(autogroup), `nice` alone counts only within one."""


class Cable(NamedTuple):
    """A cable each way.  delay: seconds one way; lost: of a million packets with data."""

    rate: str = "100mbit"
    delay: float = 0.05
    lost: int = 0
    mtu: int = 1500

    def __str__(self) -> str:
        lost = f", {self.lost / 1e4:g} % lost" if self.lost else ""
        return f"{self.rate}, {self.delay * 2e3:g} ms{lost}"


def device(cable: int) -> str:
    return f"w{cable}"


@contextlib.contextmanager
def bed(link: Cable, cables: int = 1, control: str = "", seed: int = 7) -> Iterator[list[str]]:
    """The names of the two hosts.  control: their default congestion control; "": this machine's."""
    remove_stale()
    names = [f"{PREFIX}{os.getpid()}{letter}" for letter in "abm"]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        relay = str(pathlib.Path(folder, "relay"))
        subprocess.run(["gcc", "-O2", "-Wall", str(RELAY), "-o", relay], check=True)
        for name in names:
            stack.callback(_remove, name)
            stack.callback(_end, name)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for cable in range(cables):
            _cable(names, cable, link, relay)
            words = [*URGENT, "ip", "netns", "exec", names[2], relay, f"m{cable}a", f"m{cable}b"]
            words += [str(round(link.delay * 1e6)), str(link.lost), str(seed + cable)]
            process = subprocess.Popen(words, preexec_fn=die_with(os.getpid()), start_new_session=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
        for name in names[:2] if control else ():
            ip("netns", "exec", name, "sh", "-c", f"echo {control} >/proc/sys/net/ipv4/tcp_congestion_control")
        yield names[:2]


def _end(name: str) -> None:
    """End what still runs on this host: launchers leave agents whose cable is gone."""
    for pid in ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _cable(names: list[str], cable: int, link: Cable, relay: str) -> None:
    middle, end = names[2], device(cable)
    for host, letter in enumerate("ab"):
        port = f"m{cable}{letter}"
        ip("link", "add", end, "netns", names[host], "type", "veth", "peer", "name", port, "netns", middle)
        ip("-n", names[host], "addr", "add", f"{ADDRESS.format(cable, host + 1)}/24", "dev", end)
        for space, each in ((names[host], end), (middle, port)):
            ip("-n", space, "link", "set", each, "mtu", str(link.mtu), "up")
            subprocess.run(["ip", "netns", "exec", space, relay, "off", each], check=True)
        bucket = ("tbf", "rate", link.rate, "burst", "128kb", "latency", "50ms")
        subprocess.run(["tc", "-n", names[host], "qdisc", "add", "dev", end, "root", *bucket], check=True)


def down(name: str, cable: int) -> None:
    """Pull a cable at this host."""
    ip("-n", name, "link", "set", device(cable), "down")
