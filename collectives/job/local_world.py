"""`local_world(n)`: n ranks as threads of this process, for tests, notebooks and examples.

The ranks talk through the same rings and the same engine as processes do, in plain memory; only the control plane
is replaced by a lock.  Kernels and waits run without the GIL; Python code between calls takes turns as usual.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hocket.arguments import choices, whole
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.failures.callsite import NO_THREAD
from hocket.collectives.job.config import Config
from hocket.collectives.job.world import Supply, World
from hocket.control.coordinator import ASK_AGAIN
from hocket.control.faults import Faults
from hocket.control.records import Account, Fault, Stuck, Verdict
from hocket.errors import ArgumentError, Error, TimeoutError
from hocket.transports.base import Transport
from hocket.transports.reference import Exchange, ReferenceTransport
from hocket.transports.shm.transport import ThreadTransport
from hocket.transports.shm.window import Window, address_limit, room

log = logging.getLogger("hocket")
Result = TypeVar("Result")
PRIVATE = 1 << 32
"""Bytes of addresses of one rank: 4 GiB, or less where `ulimit -v` is set."""


class _Meeting:
    """What the threads' sessions share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sessions: list[ThreadSession] = []
        self.barrier = threading.Barrier(size)
        self.values: list[Any] = [None] * size
        self.lock = threading.RLock()
        self.asked: dict[str, float] = {}
        self.mail: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()
        self.faults = Faults(lambda rank, message: self.mail.append((rank, message)), lambda seconds, call: None, {})
        """All ranks answer at once, so no time limit ever expires."""

    def tell(self, what: Callable[[Faults], None]) -> None:
        """Tell `faults` something, and deliver the messages that it sends then."""
        with self.lock:
            what(self.faults)
            while self.mail:
                rank, message = self.mail.popleft()
                self.sessions[rank].hear(message)


class ThreadSession:
    """The control plane between threads; the interface of control.session.Session."""

    local_address = None

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.meeting = rank, meeting
        self.on_stop: Callable[[Fault], Account] = lambda fault: {}
        self.on_verdict: Callable[[Verdict], None] = lambda verdict: None
        self.on_left: Callable[[int, dict[str, int]], None] = lambda rank, finished: None
        self.on_ask: Callable[[str], Account] = lambda comm: {}
        self.on_told: Callable[[str, int, Account], None] = lambda comm, rank, account: None
        self.on_open: Callable[[str], None] = lambda transport: None
        meeting.sessions.append(self)

    def exchange(self, value: Any, timeout: float, name: str = "") -> list[Any]:
        meeting = self.meeting
        meeting.values[self.rank] = value
        try:
            meeting.barrier.wait(timeout)
            values = list(meeting.values)
            meeting.barrier.wait(timeout)
        except threading.BrokenBarrierError:
            raise TimeoutError("not all threads of the local world came to its start") from None
        return values

    def report(self, fault: Fault) -> None:
        self.meeting.tell(lambda faults: faults.report(self.rank, fault))

    def stuck(self, info: Stuck) -> None:
        self.meeting.tell(lambda faults: faults.stuck(self.rank, info))

    def hear(self, message: dict[str, Any]) -> None:
        """A message of `faults` to this rank."""
        if "stop" in message:
            fault: Fault = message["stop"]
            try:
                account = self.on_stop(fault)
            except Exception as why:  # as in control/session.py: the others must not wait for its account
                log.exception("hocket: rank %d could not say what it is doing", self.rank)
                account = {"state": "error", "text": repr(why)}
            self.meeting.tell(lambda faults: faults.account(self.rank, fault["comm"], account))
        else:
            self.on_verdict(message["verdict"])

    def ask(self, comm: str, ranks: list[int]) -> None:
        with self.meeting.lock:  # it is enough if one of the ranks that wait logs it
            if time.monotonic() - self.meeting.asked.get(comm, -ASK_AGAIN) < ASK_AGAIN:
                return
            self.meeting.asked[comm] = time.monotonic()
        for session in self.meeting.sessions:
            if session.rank in ranks and session is not self:
                self.on_told(comm, session.rank, session.on_ask(comm))

    def open(self, transport: str) -> None:
        raise ArgumentError(f"a local world has one transport, and {transport!r} is another")

    def close(self, finished: dict[str, int] | None = None, patient: bool = False) -> None:
        for session in self.meeting.sessions:
            if session is not self:
                session.on_left(self.rank, finished or {})


def lone_session() -> ThreadSession:
    """The control plane of a job of one rank."""
    return ThreadSession(0, _Meeting(1))


class LocalWorld:
    """n communicators, one for each thread.  A context manager; iterating gives the communicators."""

    def __init__(self, size: int, transport: str = "threads") -> None:
        size = whole(size, "size")
        if size < 1:
            raise ArgumentError(f"local_world({size}): at least one rank")
        make = _maker(size, transport)
        self.transport = transport
        meeting = _Meeting(size)
        sessions = [ThreadSession(r, meeting) for r in range(size)]
        self.comms: list[Communicator] = []

        def start(rank: int) -> Communicator:
            supply = Supply([transport], lambda name: make(rank), self._check)
            world = World(rank, size, sessions[rank], Config(), supply)
            world.thread = NO_THREAD
            world.why = f"rank {rank} of {size}: a thread of local_world({size})"
            comm = Communicator(world, "world", range(size))
            comm.membership.accept(sessions[rank].exchange(comm.membership.offer(), 30.0))
            return comm

        self.comms = in_threads(start, range(size))

    def run(self, function: Callable[..., Result], *args: Any) -> list[Result]:
        """Call function(comm, *args) on every rank, each in its own thread.

        Returns the results by rank.  Raises the first error.
        """

        def call(comm: Communicator) -> Result:
            from hocket.collectives import default

            comm.world.thread = threading.get_ident()
            with default.current(comm):
                try:
                    return function(comm, *args)
                except BaseException as error:
                    comm.reporter.give_up(error)
                    raise
                finally:
                    comm.world.thread = NO_THREAD

        return in_threads(call, self.comms)

    def close(self) -> None:
        in_threads(lambda comm: comm.close(), self.comms)

    def _check(self, name: str) -> None:
        if name != self.transport:
            raise ArgumentError(f"transport {name!r} is not known: this local_world has {self.transport!r} alone")

    def __repr__(self) -> str:
        closed = ", closed" if all(comm.reporter.closed for comm in self.comms) else ""
        return f"<LocalWorld: {len(self.comms)} ranks as threads, over {self.transport!r}{closed}>"

    def __iter__(self) -> Iterator[Communicator]:
        return iter(self.comms)

    def __enter__(self) -> LocalWorld:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(*[Error] if exc[1] is not None else []):  # what is being raised says more
            self.close()


def _maker(size: int, transport: str) -> Callable[[int], Transport]:
    if transport == "threads":
        each = min(room(size, address_limit()), PRIVATE)
        windows = [Window(private=True, reserve=each) for _ in range(size)]
        return lambda rank: ThreadTransport(rank, windows)
    if transport == "reference":
        exchange = Exchange()
        return lambda rank: ReferenceTransport(rank, size, exchange)
    raise ArgumentError(f"local_world: transport {transport!r}; {choices(transport, ('threads', 'reference'))}")


def local_world(size: int, transport: str = "threads") -> LocalWorld:
    """Make `size` ranks that are threads of this process.

    transport="reference" uses the one in pure Python, for comparison.

    >>> import numpy as np
    >>> with local_world(3) as world:
    ...     world.run(lambda comm: int(comm.allreduce(np.array([comm.rank]))[0]))
    [3, 3, 3]
    """
    return LocalWorld(size, transport)


def in_threads(function: Callable[[Any], Result], arguments: Sequence[Any]) -> list[Result]:
    """function(argument) for each argument, in a thread of its own; the results in order.  Raises the first error."""
    results: list[Any] = [None] * len(arguments)
    errors: list[BaseException] = []

    def call(i: int) -> None:
        try:
            results[i] = function(arguments[i])
        except BaseException as error:  # handed to the caller below
            errors.append(error)

    threads = [threading.Thread(target=call, args=(i,), name=f"rank-{i}", daemon=True) for i in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
