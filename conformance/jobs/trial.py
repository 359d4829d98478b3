"""One trial: the ranks of a program on this machine, over one transport; what they say, are and leave.

A rank is a process of its own, started by hand, so that each can be ended, stopped and looked at by itself.  It
prints lines of JSON; what else it writes is kept beside them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hocket.system.namespaces.hosts import V4, on
from hocket.tools.rank import start

TRANSPORTS = ("shm", "tcp", "hosts")
"""Shared memory; TCP on one host; both, on two hosts that are network namespaces (system/namespaces/hosts.py)."""
STACKS = signal.SIGUSR1
"""Makes a rank write down where all its threads are."""
EMPTY = " (a folder with nothing but a socket)"
LOOK = 0.005
"""Seconds between two looks at which ranks have ended."""
_ports = 20000 + os.getpid() % 9000
PLACE = ("HOCKET_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI_", "SLURM_", "TORCHELASTIC_")
"""Prefixes of variables that would tell a rank of another job, or change what it does."""


class Trial:
    """`size` ranks that run `words` over `transport`; all are gone, and their directory too, after the block.

    `names`: the hosts, for the transport "hosts", whose ranks are dealt out by `where`: 0, 1, ... for each.
    """

    def __init__(
        self, words: Sequence[str], size: int, transport: str, names: Sequence[str] = (), where: Sequence[int] = (),
        **env: str,
    ) -> None:  # fmt: skip
        self.words, self.size, self.transport, self.names = words, size, transport, names
        self.where = list(where) or [r % 2 for r in range(size)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.directory = tempfile.mkdtemp(prefix="hocket-trial-")
        self.places = ["tmp", "run", *(f"host{i}" for i in range(len(names)))]
        """Folders of the ranks'."""
        self.shared = _shared_memory()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PLACE)}
        self.env = {**kept, **self._meeting(), "HOCKET_TUNING": "off", "OMP_NUM_THREADS": "1", **env}

    def __enter__(self) -> Trial:
        for place in self.places:
            os.mkdir(self._path(place), 0o700)
        try:
            self._prepare()
            for rank in range(self.size):
                self.processes.append(self._start(rank))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):  # and all that it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- starting

    def _prepare(self) -> None:
        """Prepare what has to be there before the ranks."""

    def _meeting(self) -> dict[str, str]:
        """Where the ranks meet."""
        global _ports
        own = {"HOCKET_SECRET": secrets.token_hex(16), "TMPDIR": self._path("tmp")}
        if self.transport == "hosts":
            _ports += 10  # the sockets of the trial before may still linger
            return {**own, "WORLD_SIZE": str(self.size), "MASTER_ADDR": V4[0], "MASTER_PORT": str(_ports)}
        size = str(self.size)
        there = {"HOCKET_SIZE": size, "HOCKET_LOCAL_SIZE": size, "HOCKET_RENDEZVOUS": f"unix:{self._path('run')}/meet"}
        return {**own, **there, **({"HOCKET_TRANSPORT": "tcp"} if self.transport == "tcp" else {})}

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        if self.transport == "hosts":
            host = self.where[rank]
            before, who = on(self.names[host], self._path(f"host{host}")), {"RANK": str(rank)}
        else:
            before, who = [], {"HOCKET_RANK": str(rank), "HOCKET_LOCAL_RANK": str(rank)}
        with open(self._path(f"{rank}.out"), "wb") as out, open(self._path(f"{rank}.err"), "wb") as err:
            own: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            return start([*before, *self.words], {**self.env, **who}, **own)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def add(self, **env: str) -> int:
        """One more process, with these variables besides.  Its number."""
        self.env |= env
        self.processes.append(self._start(self.size))
        self.size += 1
        return self.size - 1

    # --- looking

    def living(self) -> list[int]:
        return [rank for rank, process in enumerate(self.processes) if process.poll() is None]

    def wait(self, seconds: float, ranks: Sequence[int] | None = None) -> list[int]:
        """Wait until these ranks (default: all) have ended, or `seconds` are over.  Returns those that have not."""
        deadline = time.monotonic() + seconds
        wanted = set(range(self.size) if ranks is None else ranks)
        while (late := sorted(wanted & set(self.living()))) and time.monotonic() < deadline:
            time.sleep(LOOK)
        return late

    def code(self, rank: int) -> int | None:
        return self.processes[rank].poll()

    def signal(self, rank: int, number: int) -> None:
        """To the rank alone; one that has ended does not hear it."""
        self.processes[rank].send_signal(number)

    def said(self, rank: int) -> list[dict[str, Any]]:
        """The lines of JSON that it has printed."""
        lines = self._text(f"{rank}.out").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def cried(self, rank: int) -> str:
        """Its standard error."""
        return self._text(f"{rank}.err").strip()

    def stacks(self, ranks: Sequence[int]) -> str:
        """Where all threads of these ranks are."""
        ranks = [rank for rank in ranks if self.code(rank) is None]
        before = {rank: len(self.cried(rank)) for rank in ranks}
        for rank in ranks:
            self.signal(rank, STACKS)
        time.sleep(1.0)  # they have cores to share
        return "\n".join(f"rank {rank} is at\n{self.cried(rank)[before[rank] :].strip()}" for rank in ranks)

    def left(self) -> list[str]:
        """The leftovers of the ranks when all have ended: processes, files, names in shared memory."""
        found = [f"process {pid} of rank {rank}" for rank, p in enumerate(self.processes) for pid in _session(p.pid)]
        for place in self.places:
            # hocket-UID is the user's own directory, which stays
            own = [name for name in os.listdir(self._path(place)) if name != f"hocket-{os.getuid()}"]
            found += [f"{place}/{name}{EMPTY if _is_empty(self._path(f'{place}/{name}')) else ''}" for name in own]
        return found + [f"/dev/shm/{name}" for name in sorted(_shared_memory() - self.shared)]

    def _text(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return pathlib.Path(self._path(name)).read_text(errors="replace")
        return ""


def _shared_memory() -> set[str]:
    """Names in /dev/shm that may be hocket's; those of stand-ins for a GPU are the tests' own."""
    return {name for name in os.listdir("/dev/shm") if "hocket" in name and "cuda" not in name}


def _is_empty(path: str) -> bool:
    return os.path.isdir(path) and all(pathlib.Path(path, name).is_socket() for name in os.listdir(path))


def _session(leader: int) -> Iterator[int]:
    """The living processes of a session."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                yield int(pid)


# --------------------------------------------------------------------------------------------- in the rank


def say(**facts: Any) -> None:
    """One line of JSON for the trial, at once and whole."""
    os.write(1, (json.dumps({**facts, "at": time.monotonic()}) + "\n").encode())


def listen() -> None:
    """Be ready to tell where all threads are, when asked and when this process crashes."""
    faulthandler.enable()
    faulthandler.register(STACKS, all_threads=True)


def shown(facts: Mapping[str, Any]) -> str:
    """Options as one types them: --seed 7 --ranks 3."""
    return " ".join(f"--{name} {value}" for name, value in facts.items())


def module(name: str) -> list[str]:
    """The words that run a module of ours in a process of its own."""
    return [sys.executable, "-m", name]
