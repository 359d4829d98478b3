"""One rank of `hocket run`: its environment, its process, and how that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.collectives.job import last_words
from hocket.collectives.recording import memory
from hocket.system.parent import die_with
from hocket.tools.forking.ranks import Forked
from hocket.tools.output import Source
from hocket.xla import loading


class Rank:
    """One process and its output."""

    def __init__(
        self, number: int, process: subprocess.Popen[bytes] | Forked, words: str, recorder: int | None
    ) -> None:
        self.number, self.process = number, process
        self.sources: list[Source] = []
        self.code: int | None = None
        self.recorder = recorder
        """The descriptor of its recorder, which stays open here when it dies; None: it makes its own."""
        self._words = words

    @property
    def shown(self) -> str:
        """For a text."""
        return f"rank {self.number} (pid {self.process.pid})"

    def said(self) -> last_words.Words | None:
        """The rank's last words, if it has left any."""
        return last_words.heard(self._words)

    def meets(self) -> bool:
        """Is it looking for the others?"""
        return self.code is None and os.path.exists(f"{self._words}{last_words.MEETS}")

    def ending(self) -> bool:
        """Is it at its exit, and not because of another rank?"""
        said = self.said()
        return said is not None and not said.followed

    def signal(self, number: int) -> None:
        """Signal the rank and all it started, as long as it has not been reaped."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def ended(self) -> bool:
        """Has it just ended?  Then its group is killed, before its pid can belong to another process."""
        if self.code is not None or not os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return False
        self.signal(signal.SIGKILL)
        self.code = self.process.wait()
        return True

    def reap(self) -> None:
        """Wait for its end, which must have begun."""
        if self.code is None:
            self.code = self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def common(ranks: int, piped: bool = True) -> dict[str, str]:
    """The environment that all ranks have in common at their start."""
    env = {name: value for name, value in os.environ.items() if name != "HOCKET_SECRET_FILE"}
    if piped:  # into a pipe, Python would show nothing for a long time; to a terminal it writes line by line
        env.setdefault("PYTHONUNBUFFERED", "1")
    if ranks > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # every rank would take all cores
    # For C programs, which run hocket in a Python of their own.
    env["HOCKET_PYTHON"] = "{}:libpython{}.{}{}.so.1.0".format(sys.executable, *sys.version_info[:2], sys.abiflags)
    return env | loading.variables(env)  # of JAX, which reads them when it is imported


def environment(
    number: int, ranks: int, meeting: str, secret: str, master: tuple[str, int] | None = None, words: str = ""
) -> dict[str, str]:
    """The variables of rank `number` alone.  `meeting`: where the ranks meet; `words`: the file for its last words.

    `master`: a host and a port of this machine, for the programs of others.
    """
    size = str(ranks)
    env = {
        "HOCKET_RANK": str(number), "HOCKET_SIZE": size, "HOCKET_LOCAL_RANK": str(number), "HOCKET_LOCAL_SIZE": size,
        "HOCKET_RENDEZVOUS": meeting, "HOCKET_SECRET": secret,
        # What torchrun sets, for programs of torch alone.
        "RANK": str(number), "WORLD_SIZE": size, "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": size,
    }  # fmt: skip
    env |= {"MASTER_ADDR": master[0], "MASTER_PORT": str(master[1])} if master else {}
    return env | ({last_words.PLACE: words} if words else {})


def start(
    command: Sequence[str], env: Mapping[str, str], recorder: int | None = None, cores: Sequence[int] = (), **pipes: Any
) -> subprocess.Popen[Any]:
    """In its own session, and it dies with this process.  `cores`: it runs on these alone; `pipes`: as Popen's.

    OSError: it cannot be run.
    """
    dies = die_with(os.getpid())

    def before_exec() -> None:
        dies()
        os.sched_setaffinity(0, cores)

    kept = () if recorder is None else (recorder,)
    own = {memory.HANDED: str(recorder)} if kept else {}
    return subprocess.Popen(
        command, env={**env, **own}, start_new_session=True, preexec_fn=before_exec if cores else dies, pass_fds=kept,
        **pipes,
    )  # fmt: skip
