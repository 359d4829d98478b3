"""The launcher's end: an agent on each host, and the ranks there as if they were here."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Protocol

from hocket import __version__
from hocket.collectives.job.last_words import Words
from hocket.system.parent import die_with
from hocket.tools.output import Source
from hocket.tools.remote import refusals
from hocket.tools.remote.frames import LOST, PULSE, FrameKind, Frames, packed
from hocket.tools.remote.hosts import SECRETS, Host
from hocket.tools.remote.input import Input
from hocket.tools.remote.writer import FrameWriter

HELLO = 60.0  # seconds in which an agent must have said that it is there
END = 3.0  # seconds in which an agent ends after its ranks


class RemoteRank:
    """A rank elsewhere, with the methods of rank.Rank, which is one here."""

    def __init__(self, number: int, machine: HostAgent) -> None:
        self.number, self._machine = number, machine
        self.sources: list[Source] = []
        self.code: int | None = None
        self.pid = 0
        self.seen = (False, False)
        self.words: Words | None = None
        self.end: int | None = None
        """Its exit code, which `ended` has not told yet."""

    @property
    def shown(self) -> str:
        """For a text."""
        return f"rank {self.number} (pid {self.pid} on {self._machine.host.name})"

    def said(self) -> Words | None:
        return self.words

    def meets(self) -> bool:
        return self.code is None and self.seen[0]

    def ending(self) -> bool:
        return self.code is None and self.seen[1]

    def signal(self, number: int) -> None:
        if self.code is None:
            self._machine.signal(self, number)

    def ended(self) -> bool:
        if self.code is not None or self.end is None:
            return False
        self.code = self.end
        return True

    def reap(self) -> None:
        """Nothing: the rank's own machine does."""


class Job(Protocol):
    """The part of `run.Job` that is wanted here."""

    options: argparse.Namespace
    selector: DefaultSelector

    def source(self, number: int, target: int) -> Source: ...
    def fail(self, text: str, code: int = 1) -> None: ...


class HostAgent:
    """One host's agent."""

    def __init__(self, host: Host, all_: Machines) -> None:
        self.host, self._all = host, all_
        self.ranks = [RemoteRank(number, self) for number in host.ranks]
        self.hello: dict[str, Any] | None = None
        self.started = self.over = False
        """Has it been told to start the ranks; has all that it says been heard?"""
        self.complaints = refusals.Complaints()
        self._frames = Frames(skip=True)
        env = {name: value for name, value in os.environ.items() if name not in SECRETS} | {**host.env}
        self.process = subprocess.Popen(
            [*host.words], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd="/", start_new_session=True, preexec_fn=die_with(os.getpid()),
        )  # fmt: skip
        self.heard = self.began = time.monotonic()
        assert self.process.stdin is not None
        self._box = all_.writer.box(self.process.stdin)

    @property
    def addresses(self) -> list[str]:
        return [self.host.address] if self.host.address else [*(self.hello or {}).get("addresses", ())]

    def send(self, kind: FrameKind, rank: int = 0, body: Any = b"", last: bool = False) -> None:
        self._all.writer.send(self._box, packed(kind, rank, body), last)

    def signal(self, rank: RemoteRank, number: int) -> None:
        if self.started:
            self.send(FrameKind.SIGNAL, rank.number, number)
        else:  # and will not be
            rank.end = -number
            self.send(FrameKind.FINISH)

    def feed(self, data: bytes, now: float) -> None:
        """Bytes from the agent."""
        self.heard = now
        try:
            for kind, rank, body in self._frames.feed(data):
                self._hear(kind, rank, body, now)
        except (ValueError, KeyError, IndexError, TypeError):
            self._all.lose(self, "it says what no agent says; is another hocket there?")

    def finish(self) -> None:
        """There will be no more."""
        self.over = True
        if any(rank.end is None for rank in self.ranks):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
            self.complaints.drain()
            self._all.lose(self, refusals.ended(self.host, self.process.returncode, self.complaints, self.hello,
                                                self._frames.noise))  # fmt: skip

    def _hear(self, kind: FrameKind, number: int, body: bytes, now: float) -> None:
        if kind in (FrameKind.OUTPUT, FrameKind.ERRORS):
            self._rank(number).sources[kind - FrameKind.OUTPUT].feed(body, now)
            return
        said: Any = json.loads(body) if body else None
        if kind == FrameKind.HELLO:
            self.hello = said
            if said["version"] != __version__:
                self._all.lose(self, f"hocket {said['version']} is there, and {__version__} here: install the same one")
            else:
                self._all.greeted()
        elif kind == FrameKind.WHERE:
            self._all.start(said["host"], said["ports"])
        elif kind == FrameKind.STARTED:
            self._rank(number).pid = said
        elif kind == FrameKind.ENDED:
            code, words = said
            rank = self._rank(number)
            rank.words, rank.end = Words(*words) if words else None, code
        elif kind == FrameKind.READ and self._all.input is not None:
            self._all.input.taken(said)
        elif kind == FrameKind.SEEN:
            self._rank(number).seen = said[0], said[1]
        elif kind == FrameKind.REFUSED:
            self._all.lose(self, said[0], said[1])

    def _rank(self, number: int) -> RemoteRank:
        return self.ranks[number - self.host.ranks.start]


class Machines:
    """All hosts of a job."""

    def __init__(self, hosts: Sequence[Host], job: Job) -> None:
        self._job, self.writer = job, FrameWriter()
        self._asked = self._looks = self._stops = False
        self.input: Input | None = None
        self._ticked = time.monotonic()
        self._secret = os.urandom(32).hex()
        self.machines: list[HostAgent] = []
        self._hosts = hosts
        self.ranks: list[RemoteRank] = []

    def begin(self, begins: Callable[[Host], dict[str, Any]]) -> None:
        """Start the agents.  `begins`: what each is told; OSError: the command that reaches hosts cannot be run."""
        for host in self._hosts:
            machine = HostAgent(host, self)
            self.machines.append(machine)
            self.ranks += machine.ranks
            for rank in machine.ranks:
                rank.sources = [self._job.source(rank.number, target) for target in (1, 2)]
            assert machine.process.stdout is not None and machine.process.stderr is not None
            self._job.selector.register(machine.process.stdout, EVENT_READ, machine)
            machine.complaints.hear(machine.process.stderr)
            self._job.selector.register(machine.process.stderr, EVENT_READ, machine.complaints)
            machine.send(FrameKind.BEGIN, 0, {**begins(host), "lost": LOST})
        self.writer.start()
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._stop)

    def greeted(self) -> None:
        """An agent is there.  When all are, the first finds the address that leads to it from the others."""
        if not self._asked and all(machine.hello for machine in self.machines):
            self._asked = True
            others = [address for each in self.machines[1:] for address in each.addresses]
            self.machines[0].send(FrameKind.ASK, 0, others)

    def start(self, host: str, ports: list[int]) -> None:
        """All ranks start, and meet at this address."""
        first, last = ports[0], ports[1]
        shown = f"[{host}]" if ":" in host else host
        where = {"meeting": f"tcp:{shown}:{first}", "master": [host, last], "secret": self._secret}
        for machine in self.machines:
            if all(rank.end is None for rank in machine.ranks):
                machine.started = True
                machine.send(FrameKind.START, 0, where)
        self.input = Input(self.machines[0], self._job.selector)

    def lose(self, machine: HostAgent, why: str, code: int = 1) -> None:
        """This host's ranks have ended, as far as anybody will hear."""
        self._job.fail(f"host {machine.host.shows or machine.host.name}: {why}", code)
        for rank in machine.ranks:
            rank.end = -signal.SIGKILL if rank.end is None else rank.end
        machine.send(FrameKind.FINISH)

    def look(self) -> None:
        """Agents tell from now on which ranks meet, or are ending."""
        if not self._looks:
            self._looks = True
            for machine in self.machines:
                machine.send(FrameKind.LOOK)

    def tick(self, now: float) -> None:
        """Each second at least: who is silent?"""
        if self._stops:  # agents wait meanwhile
            self._stops = False
            self.writer.pause()
            os.kill(os.getpid(), signal.SIGSTOP)
            self.writer.paused = False
            now = time.monotonic()
        if now - self._ticked > 2 * PULSE:  # this process was stopped, or its terminal showed nothing
            for machine in self.machines:
                machine.heard = now
        self._ticked = now
        for machine in self.machines:
            if machine.over or all(rank.end is not None for rank in machine.ranks):
                continue
            if machine.hello is None:
                if now - machine.began > HELLO:
                    self.lose(machine, refusals.silent(HELLO, machine.complaints))
            elif now - machine.heard > LOST:
                self.lose(machine, f"it has been silent for {LOST:g} s: it, its agent or the network has stopped")

    def _stop(self, number: int, frame: object) -> None:
        """Ctrl-Z."""
        self._stops = True

    def finish(self) -> None:
        """All ranks have ended: agents send what is left of their output, and end."""
        for machine in self.machines:
            machine.send(FrameKind.FINISH)

    @property
    def talking(self) -> bool:
        """Is there still somebody to hear?"""
        now = time.monotonic()
        return any(not each.over and each.hello and now - each.heard < LOST for each in self.machines)

    def close(self) -> None:
        """Nothing is left here; the agents end with their connections."""
        if signal.getsignal(signal.SIGTSTP) == self._stop:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        for machine in self.machines:
            machine.send(FrameKind.FINISH, last=True)
        end = time.monotonic() + END
        for machine in self.machines:
            with contextlib.suppress(subprocess.TimeoutExpired):
                machine.process.wait(max(0.0, end - time.monotonic()))
        self.writer.close()
        for machine in self.machines:
            if machine.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(machine.process.pid, signal.SIGKILL)
            machine.process.wait()
            for pipe in (machine.process.stdout, machine.process.stderr):
                if pipe is not None:
                    pipe.close()
