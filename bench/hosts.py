"""Two hosts with a slow cable between them: network namespaces, a veth pair, a token bucket (tc tbf) at each end.

Needs root and iproute2.  They are removed when the block ends, however it ends; what a killed process left,
`remove_stale` removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator

PREFIX = "hkshaped"
"""Before the process id in the names."""
ADDRESSES = ("10.79.0.1", "10.79.0.2")
CABLE = "v0"
BURST = "128kb"
"""Of the token bucket: room for whole packets of 64 KiB.  With 32kb tc cuts them, and `python -m hocket.bench.shaped`
found 0.54 instead of 0.92 Gbit/s."""


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def remove_stale() -> None:
    """Namespaces of runs that are no more."""
    for name in re.findall(rf"^{PREFIX}\d+[ab]\b", ip("netns", "list"), re.M):
        if not os.path.exists(f"/proc/{name[len(PREFIX) : -1]}"):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)  # or another run did


@contextlib.contextmanager
def hosts(rate: str, burst: str = BURST) -> Iterator[list[str]]:
    """The names of two namespaces with a cable of that rate."""
    names = [f"{PREFIX}{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", CABLE, "netns", names[0], "type", "veth", "peer", "name", CABLE, "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", CABLE)
            for device in ("lo", CABLE):
                ip("-n", name, "link", "set", device, "up")
            shape = ["qdisc", "add", "dev", CABLE, "root", "tbf", "rate", rate, "burst", burst, "latency", "50ms"]
            subprocess.run(["tc", "-n", name, *shape], check=True, capture_output=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def on(name: str, own: str) -> list[str]:
    """The words that run a command on a host, where `own` is TMPDIR: it sees no Unix socket of another."""
    script = 'mount --bind "$0" "$TMPDIR" && exec "$@"'
    return ["ip", "netns", "exec", name, "unshare", "--mount", "sh", "-c", script, own]
