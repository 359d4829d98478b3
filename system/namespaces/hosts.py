"""Two hosts with a cable between them: network namespaces and a veth pair, if wished with a token bucket at each end.

Needs root and iproute2.  They are removed when the block ends, however it ends; what a killed process left,
`remove_stale` removes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
from collections.abc import Iterator

from hocket.errors import ArgumentError

PREFIX = "hkhost"
"""Before the process id in the names."""
V4, V6 = ("10.79.0.1", "10.79.0.2"), ("fd79::1", "fd79::2")
CABLE = "v0"
PORT = 29517
BURST = "128kb"
"""The size of the token bucket: room for whole packets of 64 KiB.  With 32kb tc cuts them, and `python -m
hocket.bench.shaped` found 0.54 instead of 0.92 Gbit/s."""


def ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    try:
        # In a session of its own: what Ctrl-C ends must not end half-made.
        return subprocess.run(words, check=True, capture_output=True, text=True, start_new_session=True).stdout
    except FileNotFoundError:
        raise ArgumentError(f"there is no `{words[0]}` here: install iproute2") from None


def _remove(name: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError, ArgumentError):  # somebody else did, or it never was
        ip("netns", "del", name)


def remove_stale() -> None:
    """Remove the namespaces of processes that have ended."""
    for name in re.findall(rf"^{PREFIX}\d+[a-z]\b", ip("netns", "list"), re.M):
        if not os.path.exists(f"/proc/{name[len(PREFIX) : -1]}"):
            _remove(name)


@contextlib.contextmanager
def hosts(rate: str | None = None, queue: str | None = None) -> Iterator[list[str]]:
    """The names of two namespaces with a cable of that rate (in tc's words, "1gbit") between them, V4[i] and V6[i].

    `queue`: the queueing discipline in the bucket ("pfifo_fast" knows SO_PRIORITY); None: bfifo.
    """
    names = [f"{PREFIX}{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", CABLE, "netns", names[0], "type", "veth", "peer", "name", CABLE, "netns", names[1])
        for name, four, six in zip(names, V4, V6, strict=True):
            ip("-n", name, "addr", "add", f"{four}/24", "dev", CABLE)
            ip("-n", name, "-6", "addr", "add", f"{six}/64", "dev", CABLE, "nodad")
            for device in ("lo", CABLE):
                ip("-n", name, "link", "set", device, "up")
            if rate is not None:
                shape(name, rate)
                if queue is not None:
                    _run("tc", "-n", name, "qdisc", "add", "dev", CABLE, "parent", "1:1", queue)
        yield names
    finally:
        for name in names:
            _remove(name)


def shape(name: str, rate: str) -> None:
    """Let this host send no faster."""
    bucket = ("tbf", "rate", rate, "burst", BURST, "latency", "50ms")
    _run("tc", "-n", name, "qdisc", "add", "dev", CABLE, "root", "handle", "1:", *bucket)


@functools.cache
def refusal(rate: str | None = None) -> str | None:
    """Why the system lets this process have no such hosts; None if it does.

    That iproute2 is missing is no refusal: `hosts` says so, and a test that needs it fails instead of being skipped.
    """
    if os.geteuid():
        return "network namespaces need root: run it with sudo"
    try:
        _run("unshare", "--net", "--mount", "true")
        with hosts(rate):
            return None
    except subprocess.CalledProcessError as why:
        return f"this system refuses `{' '.join(why.cmd)}`: {why.stderr.strip()}"
    except ArgumentError:
        return None


def on(name: str, own: str, called: str = "") -> list[str]:
    """The words that run a command on a host, where `own` is TMPDIR: it sees no Unix socket of another.

    `called`: the host's name there; "": it has this machine's.
    """
    script, apart = 'mount --bind "$0" "$TMPDIR" && exec "$@"', ["unshare", "--mount"]
    if called:
        script, apart = f"hostname {called} && {script}", [*apart, "--uts"]
    return ["ip", "netns", "exec", name, *apart, "sh", "-c", script, own]


def sent(device: str = CABLE, name: str = "") -> int:
    """Bytes that this host, or the one of this name, has put on its cable or another device."""
    counters = json.loads(ip(*(["-n", name] if name else []), "-json", "-s", "link", "show", device))
    return int(counters[0]["stats64"]["tx"]["bytes"])
