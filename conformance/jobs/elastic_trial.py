"""A trial whose members are forked, on hosts of their own if wished: one that dies is replaced within milliseconds."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Sequence

from hocket.conformance.jobs.trial import Trial
from hocket.system.namespaces.hosts import on
from hocket.tools.forking.ranks import ForkServer, fork_server

PROCESS, HOST, STEERED, KIND = "SURVIVE_PROCESS", "SURVIVE_HOST", "SURVIVE_DIRECTORY", "SURVIVE_KIND"
"""Variables: a member's number, its host's, the folder in which it finds its orders, and a newcomer's fault."""


class Child:
    """A forked member: what is used of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reap(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _reap(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class ElasticTrial(Trial):
    """Members of an elastic job.  `hosts`: the names of theirs (switch.py), dealt out by `where`; none: no hosts."""

    clocks = False
    """Do processes of odd numbers have another clock of the time since the start (a time namespace)?  Said before."""

    def __init__(
        self, words: Sequence[str], size: int, transport: str, hosts: Sequence[str], where: Sequence[int], **env: str
    ) -> None:
        super().__init__(words, size, transport, hosts, where, HOCKET_ELASTIC="1", **env)
        self.env |= {"HOCKET_LOBBY": f"{self.directory}/lobby", STEERED: self.directory}
        self._servers: list[list[ForkServer]] = []
        self._stack = contextlib.ExitStack()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._stack.close()

    def _prepare(self) -> None:
        """A process for each host and clock, from which its members are forked."""
        clocks = [[], ["unshare", "--time", "--boottime", "100000"]] if self.clocks else [[]]
        for before in [on(name, self._path(f"host{i}")) for i, name in enumerate(self.names)] or [[]]:
            commands = [[*before, *clock, *self.words] for clock in clocks]
            begun = [fork_server(command, self.directory, dict(self.env), piped=True) for command in commands]
            self._servers.append([self._stack.enter_context(each) for each in begun])
        for server in itertools.chain(*self._servers):
            if not server.ready(lambda: False):
                raise RuntimeError("the members cannot be forked")

    def host(self, process: int) -> int:
        return self.where[process] if self.names else 0

    def join(self, host: int, kind: str = "") -> int:
        """One more process, a newcomer on this host, of this kind (survive/together.py).  Its number."""
        if self.names:
            self.where.append(host)
        return self.add(HOCKET_JOIN=f"folder:{self.directory}/lobby", **{KIND: kind})

    def order(self, process: int, moment: str, delay: float, number: int) -> None:
        """This process is to send itself a signal, so long after it has come to a moment (survive/life.py)."""
        path = self._path(f"order{process}")
        with open(f"{path}~", "w") as file:
            file.write(f"{moment} {delay} {number}")
        os.rename(file.name, path)

    def leave(self, process: int) -> None:
        """This process is to leave at its next step."""
        with open(self._path(f"leave{process}"), "w"):
            pass

    def forget_order(self, process: int) -> bool:
        """Was it still to come?"""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(f"order{process}"))
            return True
        return False

    def killed(self, process: int) -> bool:
        return self.code(process) == -signal.SIGKILL

    def _start(self, rank: int) -> Child:  # type: ignore[override]
        host = self.host(rank)
        who = {"RANK": str(rank)} if self.names else {"HOCKET_RANK": str(rank), "HOCKET_LOCAL_RANK": str(rank)}
        own = {**self.env, **who, PROCESS: str(rank), HOST: str(host)}
        with open(self._path(f"{rank}.out"), "wb") as out, open(self._path(f"{rank}.err"), "wb") as err:
            servers = self._servers[host]
            return Child(servers[rank % len(servers)].fork(own, [(1, out.fileno()), (2, err.fileno())]))
