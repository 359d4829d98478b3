"""Hosts around a switch: network namespaces, each with a cable to a bridge in another one, and a name of its own.

Needs root and iproute2, as system/namespaces/hosts.py.  Everything is gone when the block ends.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from hocket.system.namespaces.hosts import CABLE, ip
from support.jobs import Ended

ADDRESS = "10.78.0.{}"
SWITCH = "sw"


class Star:
    """`names[i]` is the host name of host i, and ADDRESS.format(i + 1) its address."""

    def __init__(self, names: Sequence[str], folder: pathlib.Path) -> None:
        self.names, self._folder = names, folder
        self._spaces = [f"hkstar{os.getpid()}{each}" for each in [*names, SWITCH]]

    def make(self) -> None:
        for space in self._spaces:
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        *hosts, switch = self._spaces
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for i, space in enumerate(hosts):
            ip("link", "add", CABLE, "netns", space, "type", "veth", "peer", "name", f"port{i}", "netns", switch)
            ip("-n", space, "addr", "add", f"{ADDRESS.format(i + 1)}/24", "dev", CABLE)
            ip("-n", space, "link", "set", CABLE, "up")
            ip("-n", switch, "link", "set", f"port{i}", "master", "bridge", "up")

    def remove(self) -> None:
        for space in self._spaces:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", space)

    def shape(self, host: int, *words: str) -> None:
        """Let all that host `host` sends go through this queueing discipline: "tbf", "rate", "1mbit", ..."""
        command = ["tc", "-n", self._spaces[host], "qdisc", "add", "dev", CABLE, "root", *words]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def mtu(self, host: int, nbytes: int) -> None:
        ip("-n", self._spaces[host], "link", "set", CABLE, "mtu", str(nbytes))

    def run(
        self, words: Sequence[str], each: int = 1, env: Mapping[int, Mapping[str, str]] | None = None,
        absent: Sequence[int] = (), seconds: float = 60.0,
    ) -> dict[int, Ended]:  # fmt: skip
        """Run a command on `each` ranks of every host but those `absent`; `env`: further variables, by rank."""
        size = each * len(self.names)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HOCKET_")}
        job = {
            "WORLD_SIZE": str(size), "MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": "29500",
            "HOCKET_SECRET": secrets.token_hex(32), "TMPDIR": str(self._folder / "tmp"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        started = {}
        for rank in range(size):
            host, own = rank // each, (env or {}).get(rank, {})
            if rank not in absent:
                started[rank] = subprocess.Popen(
                    [*self._on(host), *words], env={**clean, **job, "RANK": str(rank), **own}, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                )  # fmt: skip
        ends = {}
        try:
            for rank, process in started.items():
                out, err = process.communicate(timeout=seconds)
                ends[rank] = Ended(process.returncode, out, err)
        finally:
            for process in started.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return ends

    def _on(self, host: int) -> list[str]:
        """The host's own name, and its own files where TMPDIR is, so that hosts share no Unix socket."""
        folder = self._folder / self.names[host]
        folder.mkdir(exist_ok=True)
        script = 'hostname "$0" && mount --bind "$1" "$TMPDIR" && shift && exec "$@"'
        apart = ["unshare", "--mount", "--uts", "sh", "-c", script, self.names[host], str(folder)]
        return ["ip", "netns", "exec", self._spaces[host], *apart]


@contextlib.contextmanager
def star(*names: str) -> Iterator[Star]:
    with tempfile.TemporaryDirectory(prefix="star-") as folder:  # short: a long path would be too long for sockets
        made = Star(names, pathlib.Path(folder))
        (made._folder / "tmp").mkdir()
        try:
            made.make()
            yield made
        finally:
            made.remove()


DOCTOR = [sys.executable, "-m", "hocket", "doctor", "--job"]
