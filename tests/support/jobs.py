"""Real processes for tests: start ranks, collect what they print, end only what was started."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.warm.popen import Popen
from support.warm.program import SOURCES, TESTS
from support.warm.staying import Staying


@dataclass
class Ended:
    """One rank's end."""

    code: int
    out: str
    err: str


CHANGES = re.compile(
    r"^\s*[\w.]+\.\w+ = |setattr\(|limit|set\w*[ug]id\(|patch|ctypes|fork|multiproc|HOCKET_RECORD", re.MULTILINE
)
"""Words of a source that changes its process, or needs something at its start: the next program would notice."""
__all__ = ["SOURCES", "TESTS", "Ended", "Job", "run"]
OF_A_JOB = [f"HOCKET_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "RENDEZVOUS", "SECRET")]


@dataclass
class Job:
    """`size` ranks that run `source` (Python text) or `argv`; each is its own process, as under a launcher.

    They are forked from a warm process unless something has to be there at a process's start (support/warm).

    with Job(2, source="...") as job:
        job.signal(1, signal.SIGKILL); ends = job.wait(10)
    """

    size: int
    source: str = ""
    argv: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    prefix: dict[int, list[str]] = field(default_factory=dict)
    """Words before the command of a rank."""
    hosts: Sequence[tuple[str, str]] = ()
    """The host of each rank: its network namespace, and the folder that is its TMPDIR there.  They are told nothing of
    a job."""
    stay: bool = False
    """May its processes run other programs before and after?  Not where they are what is tested."""

    def __enter__(self) -> Job:
        self.directory = tempfile.mkdtemp(prefix="hocket-test-")
        script = os.path.join(self.directory, "rank.py")
        with open(script, "w") as file:
            file.write(textwrap.dedent(self.source))
        base = {
            **os.environ, "HOCKET_SIZE": str(self.size), "HOCKET_LOCAL_SIZE": str(self.size),
            "HOCKET_RENDEZVOUS": f"unix:{self.directory}/meet", "HOCKET_SECRET": secrets.token_hex(32),
            "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **self.env,
        }  # fmt: skip
        if self.hosts:
            base = {name: value for name, value in base.items() if name in self.env or name not in OF_A_JOB}
        self.processes = [self._start(r, script, {**base, **self._place(r)}) for r in range(self.size)]
        return self

    def _place(self, rank: int) -> dict[str, str]:
        return {"RANK": str(rank)} if self.hosts else {"HOCKET_RANK": str(rank), "HOCKET_LOCAL_RANK": str(rank)}

    def _start(self, rank: int, script: str, env: dict[str, str]) -> Popen:
        command = [*self.prefix.get(rank, []), *(self.argv or [sys.executable, "-X", "faulthandler", script])]
        host = self.hosts[rank] if self.hosts else ()
        pipe = subprocess.PIPE
        text = {"text": True, "errors": "replace"}
        popen = Staying if self.stay and not CHANGES.search(f"{self.source} {self.env}") else Popen
        return popen(command, env=env, stdout=pipe, stderr=pipe, start_new_session=True, host=host, **text)

    def wait(self, seconds: float = 60.0) -> list[Ended]:
        """Every rank's end; ranks still there after `seconds` are ended, tell where they are, and the test fails."""
        deadline = time.monotonic() + seconds
        ends: list[Ended] = []
        late: list[int] = []
        for process in self.processes:
            try:
                out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                if not late:
                    late = self._abort()
                out, err = self._end(process)
            ends.append(Ended(process.returncode, out, err))
        if late:
            raise AssertionError(f"ranks {late} did not end within {seconds} s: {ends}")
        return ends

    def _abort(self) -> list[int]:
        """Ranks that were still there; faulthandler tells where their threads are."""
        late = [r for r, process in enumerate(self.processes) if process.poll() is None]
        for r in late:
            self.processes[r].send_signal(signal.SIGABRT)
        return late

    def _end(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=2)
        process.kill()
        return process.communicate()

    def signal(self, rank: int, number: int) -> None:
        self.processes[rank].send_signal(number)

    def __exit__(self, *exc: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def run(size: int, source: str, seconds: float = 60.0, stay: bool = True, **env: str) -> list[str]:
    """Run `source` on `size` ranks; all must end with 0.  What each printed."""
    with Job(size, source, env=env, stay=stay) as job:
        ends = job.wait(seconds)
    for r, end in enumerate(ends):
        assert end.code == 0, f"rank {r} ended with {end.code}:\n{end.err}\n{end.out}"
    return [end.out for end in ends]
