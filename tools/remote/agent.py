"""The program that `hocket run` starts on another host: it starts that host's ranks, and none outlives it there.

    python -m hocket.tools.remote.agent          frames (frames.py) on standard input and output

It ends its ranks when the launcher says so, when the connection ends, and when the launcher has been silent for LOST
seconds; if it is killed itself, the kernel ends them (system/parent.py), and the sentry what they have started.
The secret arrives in a frame and goes into the environments of ranks: it is on no command line, nor in the agent's own
environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from hocket import __version__
from hocket.errors import Error
from hocket.system.machine import free_port, local_end, loopback
from hocket.tools.here import LocalRanks
from hocket.tools.rank import Rank, environment
from hocket.tools.remote.frames import LOST, MAGIC, PULSE, FrameKind, Frames, packed
from hocket.tools.remote.sentry import Sentry
from hocket.tools.run_folder import place

PORTS = 4
"""Ports for rank 0, which takes the first that is still free."""
FULL = 1 << 20
"""Bytes that may wait for the launcher; then ranks' output waits in their pipes."""
LOOK = 0.05  # seconds between looks at last words, once the launcher wants to know
DRAIN = 1.0  # seconds that a dead rank's output may be held open by a process it left


class LauncherGone(Exception):
    """The launcher, or the way to it."""


class LauncherWire:
    """The frames of the launcher.  Nothing here waits for it, but `wait`."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        for end in (source, sink):
            os.set_blocking(end, False)
        self._frames, self._out = Frames(), bytearray()
        self._early: list[tuple[FrameKind, int, bytes]] = []  # what came with a frame that was waited for
        self.heard, self._looked, self._said = (time.monotonic(),) * 3
        self.lost = LOST
        self._paused = False

    def send(self, kind: FrameKind, rank: int = 0, body: Any = b"") -> None:
        self._out += packed(kind, rank, body)
        self.flush()

    def greet(self, body: Any) -> None:
        self._out += MAGIC
        self.send(FrameKind.HELLO, 0, body)

    def flush(self) -> None:
        """Send what can be sent now.  LauncherGone: nobody reads it."""
        try:
            while self._out:
                del self._out[: os.write(self.sink, self._out[:65536])]
        except BlockingIOError:
            pass
        except OSError as why:
            raise LauncherGone(str(why)) from None

    @property
    def waits(self) -> int:
        """Bytes that wait."""
        return len(self._out)

    def read(self) -> list[tuple[FrameKind, int, bytes]]:
        """The frames that are here.  LauncherGone: there will be no more."""
        found, self._early = self._early, []
        try:
            while True:
                data = os.read(self.source, 65536)
                if not data:
                    raise LauncherGone("the connection has ended")
                self.heard = time.monotonic()
                found += list(self._frames.feed(data))
                if found:
                    self._paused = found[-1][0] == FrameKind.PAUSE
        except BlockingIOError:
            return found
        except (OSError, ValueError) as why:
            raise LauncherGone(str(why)) from None

    def breathe(self) -> None:
        """A sign of life, when it is time.  LauncherGone: the launcher gives none."""
        now = time.monotonic()
        if now - self._looked > PULSE * 2:  # this process was stopped, and has heard nothing
            self.heard = now
        self._looked = now
        if now - self.heard > self.lost and not self._paused:
            raise LauncherGone("the launcher is silent")
        if now - self._said >= PULSE and not self._out:
            self._said = now
            self.send(FrameKind.PULSE)
        self.flush()

    def wait(self, kind: FrameKind) -> bytes:
        """The body of the next frame of this kind."""
        while True:
            if not self._early:
                select.select([self.source], [], [], PULSE / 4)
            frames = self.read()
            for i, (each, _, body) in enumerate(frames, 1):
                if each == FrameKind.FINISH:
                    raise LauncherGone("the job has ended")
                if each == kind:
                    self._early = frames[i:]
                    return body
            self.breathe()


class Agent:
    """The ranks of this host."""

    def __init__(self, wire: LauncherWire, sentry: Sentry, told: dict[str, Any], directory: str) -> None:
        self.wire, self.sentry, self.told = wire, sentry, told
        self.here = LocalRanks(told["command"], len(told["ranks"]), directory, bind=told["bind"])
        self.ranks: list[Rank] = []
        self.shown: dict[int, tuple[bool, bool]] | None = None  # what the launcher knows of ranks, if it wants to
        self.finish_by: float | None = None
        self.selector = selectors.EpollSelector()
        self.input, self.feed = bytearray(), -1  # for rank 0, and where it goes
        self.fed = False  # there will be no more of it

    def start(self) -> None:
        """All ranks of this host, or none: then the launcher hears why."""
        told, local = self.told, len(self.told["ranks"])
        if told["reads"]:
            reads, self.feed = os.pipe2(os.O_CLOEXEC)
            os.dup2(reads, 0)
            os.close(reads)
            os.set_blocking(self.feed, False)
        with self.here.fork_server(told["fork"], self._gone) as ready:
            asked = json.loads(self.wire.wait(FrameKind.ASK if told["ranks"][0] == 0 else FrameKind.START))
            if told["ranks"][0] == 0:
                self.wire.send(FrameKind.WHERE, 0, _where(asked))
                asked = json.loads(self.wire.wait(FrameKind.START))
            server = ready()
            for i, number in enumerate(told["ranks"]):
                env = environment(number, told["size"], asked["meeting"], asked["secret"], tuple(asked["master"]),
                                  self.here.words(number))  # fmt: skip
                place = {"LOCAL_RANK": str(i), "LOCAL_WORLD_SIZE": str(local)}
                env |= place | {"HOCKET_LOCAL_RANK": str(i), "HOCKET_LOCAL_SIZE": str(local)}
                try:
                    rank = self.here.rank(number, env, told["reads"] and number == 0, server)
                except OSError as why:
                    _refuse(self.wire, f"cannot run {told['command'][0]!r}: {why.strerror}",
                            127 if isinstance(why, FileNotFoundError) else 126)  # fmt: skip
                self.sentry.watch(rank.process.pid)
                self.ranks.append(rank)
                self.wire.send(FrameKind.STARTED, number, rank.process.pid)
                for kind, pipe in ((FrameKind.OUTPUT, rank.process.stdout), (FrameKind.ERRORS, rank.process.stderr)):
                    assert pipe is not None
                    self.selector.register(pipe, selectors.EVENT_READ, (kind, number))
                self.wire.breathe()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # rank 0 alone reads the pipe, and its end is heard here

    def _gone(self) -> bool:
        """Asked while the process that ranks are forked from begins.  Has the launcher gone, meanwhile?"""
        self.wire.breathe()
        return bool(select.select([self.wire.source], [], [], 0)[0]) and not _more(self.wire.source)

    def run(self) -> None:
        """Until the launcher has heard all, or has gone."""
        wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while not self._finished():
            ranks = self.selector.fileno()
            reading = [] if self.wire.waits > FULL else [ranks]
            busy = [self.wire.sink] if self.wire.waits else []
            busy += [self.feed] if self.input else []
            wait = LOOK if self.shown is not None or self.finish_by else PULSE / 2
            readable, _, _ = select.select([wake, self.wire.source, *reading], busy, [], wait)
            if ranks in readable:
                self._read_ranks()
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            for kind, number, body in self.wire.read():
                self._hear(kind, number, body)
            self._feed()
            for rank in self.ranks:
                if rank.ended():
                    self.sentry.forget(rank.process.pid)
                    said = rank.said()
                    self.wire.send(FrameKind.ENDED, rank.number, [rank.code, said and list(said)])
            self._look()
            self.wire.breathe()

    def _finished(self) -> bool:
        if self.finish_by is None:
            return False
        if time.monotonic() > self.finish_by:  # whatever was to be drained
            return not self.wire.waits
        return not self.wire.waits and not self.selector.get_map() and all(r.code is not None for r in self.ranks)

    def _read_ranks(self) -> None:
        for key, _ in self.selector.select(0):
            if data := os.read(key.fd, 65536):
                kind, number = key.data
                self.wire.send(kind, number, data)
            else:
                self.selector.unregister(key.fd)

    def _hear(self, kind: FrameKind, number: int, body: bytes) -> None:
        if kind == FrameKind.SIGNAL:
            for rank in self.ranks:
                if rank.number == number:
                    rank.signal(json.loads(body))
        elif kind == FrameKind.LOOK:
            self.shown = self.shown or {}
        elif kind == FrameKind.FINISH:
            self.finish_by = self.finish_by or time.monotonic() + DRAIN
        elif kind == FrameKind.INPUT and self.feed >= 0:
            self.input += body
            self.fed = self.fed or not body

    def _feed(self) -> None:
        """Input that rank 0 takes now."""
        if self.input:
            try:
                taken = os.write(self.feed, self.input)
            except BlockingIOError:
                return
            except OSError:  # it reads no more
                taken = len(self.input)
            del self.input[:taken]
            self.wire.send(FrameKind.READ, 0, taken)
        if self.fed and not self.input and self.feed >= 0:
            os.close(self.feed)
            self.feed = -1

    def _look(self) -> None:
        if self.shown is None:
            return
        for rank in self.ranks:
            seen = rank.meets(), rank.code is None and rank.ending()
            if self.shown.get(rank.number, (False, False)) != seen:
                self.shown[rank.number] = seen
                self.wire.send(FrameKind.SEEN, rank.number, seen)

    def end(self) -> None:
        """Whatever happened: no rank of this host goes on."""
        for rank in self.ranks:
            rank.signal(signal.SIGKILL)
        for rank in self.ranks:
            if rank.code is None:
                rank.code = rank.process.wait()


def _more(source: int) -> bool:
    """Is there something to read?  (Else that is the end.)"""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _where(others: list[str]) -> dict[str, Any]:
    """The address of this host that leads to it from the others, and free ports there."""
    found = [*filter(None, map(local_end, others)), *_addresses(), loopback()]
    host = found[0]
    return {"host": host, "ports": [free_port(host)[1] for _ in range(PORTS)]}


def _addresses() -> list[str]:
    """This host's, the likeliest to lead here first: that by which ssh came, and that of its name."""
    found = [*os.environ.get("SSH_CONNECTION", "").split()[2:3], local_end(socket.gethostname())]
    return [each for each in found if each and not each.startswith("127.") and each != "::1"]


def _refuse(wire: LauncherWire, why: str, code: int = 1) -> NoReturn:
    wire.send(FrameKind.REFUSED, 0, [why, code])
    wire.wait(FrameKind.FINISH)
    raise LauncherGone(why)


def main() -> int:
    """0: the launcher has heard all; 1: it has gone."""
    wire = LauncherWire(os.dup(0), os.dup(1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what anybody prints here must not be taken for a frame
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a connection that ends is noticed, and the ranks ended first
    agent = None
    sentry = Sentry()
    try:
        wire.greet({"version": __version__, "addresses": _addresses()})
        told = json.loads(wire.wait(FrameKind.BEGIN))
        wire.lost = told["lost"]
        try:
            os.chdir(told["directory"])
        except OSError as why:
            folder = f"the folder {told['directory']!r} cannot be entered ({why.strerror})"
            _refuse(wire, f"{folder}: make it there, or give --wdir, a folder that all hosts have")
        os.environ.update(told["env"])
        own = os.environ.get("PATH", os.defpath).split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*told["path"].split(os.pathsep), *own]))
        with place() as directory:
            agent = Agent(wire, sentry, told, directory)
            try:
                agent.start()
                agent.run()
            finally:
                agent.end()
        return 0
    except LauncherGone:
        return 1
    except Error as why:
        with contextlib.suppress(LauncherGone):
            _refuse(wire, str(why))
        return 1


if __name__ == "__main__":
    sys.exit(main())
