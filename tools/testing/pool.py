"""Ranks that wait for work: `Pool(3).call(function)` is a few milliseconds, as nothing is started for it.

    with Pool(3, {"HOCKET_TRANSPORT": "tcp"}) as pool:
        pool.call(program, 7, timeout=20)       # program(comm, 7) on three ranks; what each returned

A pool whose ranks were lost, hang, or have left their communicator unfit for the next call is at its end;
`pool_of` makes another one then.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from hocket.errors import Error
from hocket.tools.rank import environment
from hocket.tools.run_folder import place
from hocket.tools.testing.hearing import Hearing, Outcome, received
from hocket.tools.testing.rank import crash_of, is_between
from hocket.tools.testing.zygote import Zygote

START = 60.0
"""Seconds for the ranks to meet."""
LEAVE = 5.0
"""Seconds for the ranks to leave, at the end."""
_zygote: Zygote | None = None
_pools: dict[tuple[int, frozenset[tuple[str, str]]], Pool] = {}


class Failed(AssertionError):
    """A function failed on some ranks of a pool; `outcome` has what became of each."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.text())
        self.outcome = outcome


class Pool:
    """`size` ranks, each a process of its own, with `env` in their environment.  A context manager."""

    def __init__(self, size: int, env: Mapping[str, str] | None = None) -> None:
        self.size = size
        self._place = contextlib.ExitStack()
        self._folder = self._place.enter_context(place())
        self._calls = 0
        self._secret = secrets.token_hex(32)
        self._zygote = prepare()
        self.ends: list[Connection] = []
        self.pids: list[int] = []
        self.watched: list[int] = []
        self.fit = True
        """May another function run on it?"""
        try:
            for r in range(size):
                self._start(r, env or {})
            self._meet()
        except BaseException:
            self.kill()
            raise

    def _start(self, r: int, env: Mapping[str, str]) -> None:
        of_job = environment(r, self.size, self._meeting(), self._secret, ("127.0.0.1", 0), self._words(r))
        ours, theirs = socket.socketpair()
        self.ends.append(Connection(ours.detach()))
        with theirs:
            self.pids.append(self._zygote.fork({**of_job, **env}, theirs.fileno()))
        self.watched.append(os.pidfd_open(self.pids[-1]))

    def _meet(self) -> None:
        deadline = time.monotonic() + START
        for r, end in enumerate(self.ends):
            if not wait([end, self.watched[r]], deadline - time.monotonic()):
                raise Error(f"rank {r} of a pool of {self.size} did not start within {START:g} s")
            what, *said = received(end)
            if what == "gone":
                raise Error(f"rank {r} of a pool of {self.size} {self.end_of(r)} before it was ready")
            if what != "ready":
                raise Error(f"rank {r} of a pool of {self.size} could not start:\n{said[0]}")

    def call(self, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
        """Call function(comm, *args) on every rank, and return the results by rank.

        `function`, found by its module and name, and the arguments are pickled.  Raises `Failed`, with the ranks'
        tracebacks, or who waits where after `timeout` seconds.
        """
        outcome = self.run(function, *args, timeout=timeout)
        if len(outcome.done) < self.size:
            raise Failed(outcome)
        return [outcome.done[r] for r in range(self.size)]

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> Outcome:
        """The same; what became of each rank, whatever that is."""
        assert self.fit, "this pool is at its end; make another"
        self._calls += 1
        try:
            with _port() as port:
                env = {"HOCKET_RENDEZVOUS": self._meeting(), "MASTER_PORT": str(port)}
                order = ("run", pickle.dumps((function, args)), env)
                for end in self.ends:
                    with contextlib.suppress(OSError):  # it has died; that is noticed below
                        end.send(order)
                outcome = Hearing(self, timeout).hear()
        except BaseException:
            self.kill()
            raise
        if outcome.died or outcome.account:
            self.kill()
        self.fit = self.fit and not outcome.disturbed and self._is_fit()
        return outcome

    def _meeting(self) -> str:
        """Where the ranks meet; in each function elsewhere, as some may not come."""
        return f"unix:{self._folder}/meet{self._calls}"

    def _is_fit(self) -> bool:
        """Have all ranks come equally far, and left nothing behind?  Asked when all are done: no more is on its way."""
        calls = set[int | None]()
        try:
            for end in self.ends:
                end.send(("check",))
            for end in self.ends:
                calls.add(end.recv()[1] if end.poll(LEAVE) else None)
        except (EOFError, OSError):
            return False
        return len(calls) == 1 and None not in calls

    def end_of(self, r: int) -> str:
        """Words on that rank's end; it has ended, or has nothing any more by which it hears."""
        if not wait([self.watched[r]], 1.0):
            os.kill(self.pids[r], signal.SIGKILL)
        code = self._zygote.reap(self.pids[r])
        self.pids[r] = 0
        if code >= 0:
            return f"ended with exit code {code}"
        lines = [f"was killed by {signal.Signals(-code).name}"]
        with contextlib.suppress(OSError), open(crash_of(self._words(r))) as file:
            frames = (line.rstrip() for line in file if line.startswith("  File "))
            lines += itertools.takewhile(lambda line: not is_between(line), frames)
        return "\n".join(lines)

    def _words(self, r: int) -> str:
        return os.path.join(self._folder, f"words-{r}")

    def close(self) -> None:
        """Let the ranks leave well, with what they have at their end; those that do not are killed."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.send(("end",))
        left, until = set(self.watched), time.monotonic() + LEAVE
        while left and (ended := wait(list(left), max(0.0, until - time.monotonic()))):
            left.difference_update(each for each in ended if isinstance(each, int))
        self.kill()

    def kill(self) -> None:
        """End the ranks now."""
        self.fit = False
        left = [r for r, pid in enumerate(self.pids) if pid]
        for r in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[r], signal.SIGKILL)
        for r in left:
            with contextlib.suppress(OSError):
                self.end_of(r)
        for end in self.ends:
            end.close()
        for fd in self.watched:
            os.close(fd)
        self.watched.clear()
        self._place.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextlib.contextmanager
def _port() -> Iterator[int]:
    """A port of this machine that no other process is given in the block, and rank 0 may listen on."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def prepare() -> Zygote:
    """Fork the process that ranks are forked from, unless it is there: ranks have what is imported by now."""
    global _zygote
    if _zygote is None:
        _zygote = Zygote()
    return _zygote


def pool_of(size: int, env: Mapping[str, str] | None = None) -> Pool:
    """The pool of so many ranks with these variables, a new one if there is none that is fit."""
    key = size, frozenset((env or {}).items())
    pool = _pools.get(key)
    if pool is None or not pool.fit:
        if pool is not None:
            pool.close()
        pool = _pools[key] = Pool(size, env)
    return pool


def close_all() -> None:
    """End all pools of `pool_of`, and the process that ranks are forked from."""
    global _zygote
    for pool in _pools.values():
        pool.close()
    _pools.clear()
    if _zygote is not None:
        _zygote.close()
        _zygote = None
