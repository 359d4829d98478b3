"""A team: all ranks of one library, given one order at a time.

`Started`: workers on this machine, started by the library's own launcher, ordered over a Unix socket.
`Half`: one of two libraries that the same workers hold.
`Joined`: the ranks that some launcher has started with this program itself; rank 0 orders, by hocket's own calls.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hocket.bench.harness.worker import Order, Subject, Worker
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import Error, PeerLostError
from hocket.system.machine import new_folder

START = 120.0
"""Seconds for all ranks of a library to come: a cold import of torch takes many."""
WITHIN = "a benchmark"
"""Rank 0's orders and the ranks' reports are a part of this, in an error."""


class Team(Protocol):
    """`order` gives all ranks the same order and returns their reports; an error of any of them is raised."""

    name: str
    about: str

    @property
    def beside(self) -> Team | None:
        """hocket in this peer's processes, if it is there."""

    def order(self, do: str, **fields: Any) -> list[Order]: ...
    def close(self) -> None: ...


@dataclass
class Command:
    """Command lines that start the ranks: one command line each, or one for all."""

    lines: list[list[str]]
    environments: list[dict[str, str]] = field(default_factory=list)


class Started:
    """`size` workers; `command(path)` says how they are started."""

    beside = None

    def __init__(self, name: str, size: int, command: Any) -> None:
        self.name, self.size = name, size
        self.directory = new_folder("hocket-bench-")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.lines: list[Any] = []
        self.about = ""
        try:
            with socket.socket(socket.AF_UNIX) as listener, open(self._log, "wb") as log:
                path = os.path.join(self.directory, "orders")
                listener.bind(path)
                listener.listen(size)
                self._start(command(path), log)
                self._gather(listener)
        except BaseException:
            self.close()
            raise

    @property
    def _log(self) -> str:
        return os.path.join(self.directory, "log")

    def _start(self, command: Command, log: Any) -> None:
        environments = command.environments or [{}] * len(command.lines)
        for line, extra in zip(command.lines, environments, strict=True):
            env = {"OMP_NUM_THREADS": "1", **os.environ, **extra}
            quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.processes.append(subprocess.Popen(line, env=env, start_new_session=True, **quiet))

    def _gather(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + START
        listener.settimeout(0.2)
        while len(self.lines) < self.size:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                if any(process.poll() not in (None, 0) for process in self.processes):
                    raise PeerLostError(f"{self.name}: its ranks did not start: {self._last_words()}") from None
                if time.monotonic() > deadline:
                    missing = self.size - len(self.lines)
                    raise PeerLostError(f"{self.name}: {missing} ranks did not come in {START:g} s") from None
                continue
            sock.settimeout(None)
            with sock:
                self.lines.append(sock.makefile("rw", encoding="utf-8"))
        hellos = [self._hear(i) for i in range(self.size)]
        order = sorted(range(self.size), key=lambda i: hellos[i]["rank"])
        if [hellos[i]["rank"] for i in order] != list(range(self.size)):
            raise Error(f"{self.name}: its launcher started ranks that do not know each other")
        self.lines = [self.lines[i] for i in order]
        self.about = hellos[0]["about"]

    def order(self, do: str, **fields: Any) -> list[Order]:
        line = json.dumps({"do": do, **fields}) + "\n"
        with contextlib.suppress(BrokenPipeError):  # the reads below say which rank has gone
            for lines in self.lines:
                lines.write(line)
                lines.flush()
        return _no_errors(self.name, [self._hear(i) for i in range(self.size)])

    def _hear(self, index: int) -> Order:
        try:
            line = self.lines[index].readline()
        except ConnectionError:
            line = ""
        if not line:
            raise PeerLostError(f"{self.name}: rank {index} has ended: {self._last_words()}", [index])
        report: Order = json.loads(line)
        return report

    def _last_words(self) -> str:
        """The last thing that the ranks wrote: the line that looks most like a reason."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip(" -\n")]
        reasons = [line for line in lines if "Error" in line]
        return (reasons or lines or ["it said nothing"])[-1]

    def close(self) -> None:
        """The workers leave when their socket closes; one that does not is ended."""
        for lines in self.lines:
            with contextlib.suppress(OSError):
                lines.close()
        deadline = time.monotonic() + (5.0 if len(self.lines) == self.size else 0.0)
        for process in self.processes:
            _end(process, deadline)
        shutil.rmtree(self.directory, ignore_errors=True)


class Half:
    """One library of workers that hold two; the other one, hocket's, is `beside` it in the same processes."""

    def __init__(self, whole: Started, name: str, beside: Team | None = None) -> None:
        self.whole, self.name, self.about, self.beside = whole, name, whole.about, beside

    def order(self, do: str, **fields: Any) -> list[Order]:
        return self.whole.order(do, to=self.name, **fields)

    def close(self) -> None:
        self.whole.close()


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, deadline - time.monotonic()))
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2.0)
        return
    process.kill()
    process.wait()


class Joined:
    """The ranks of this very job under one library.  On rank 0 a team; the others `serve` all the teams.

    Orders travel by `comm`, hocket's.
    """

    beside = None

    def __init__(self, comm: Communicator, subject: Subject) -> None:
        self.comm, self.worker = comm, Worker(subject)
        self.name, self.about = subject.name, subject.about

    def order(self, do: str, **fields: Any) -> list[Order]:
        self.comm.share({"to": self.name, "do": do, **fields}, WITHIN)
        return _no_errors(self.name, self.comm.share(self.worker.perform({"do": do, **fields}), WITHIN))

    @staticmethod
    def serve(teams: Sequence[Joined]) -> None:
        """On ranks other than 0: until rank 0 closes."""
        workers, comm = {team.name: team.worker for team in teams}, teams[0].comm
        while order := comm.share(None, WITHIN)[0]:
            comm.share(workers[order.pop("to")].perform(order), WITHIN)

    def close(self) -> None:
        """Ends the work of all the teams."""
        self.comm.share({}, WITHIN)


def _no_errors(name: str, reports: list[Order]) -> list[Order]:
    for rank, report in enumerate(reports):
        if "error" in report:
            raise Error(f"{name}: rank {rank}: {report['error']}")
    return reports
