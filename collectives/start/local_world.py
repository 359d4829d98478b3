"""`local_world(n)`: n ranks as threads of this process, for tests, notebooks and examples.

The ranks talk through the same rings and the same engine as processes do, in plain memory, and to the same
coordinator, through a queue.  Kernels and waits run without the GIL; Python code between calls takes turns as usual.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hocket.arguments import choices, whole
from hocket.collectives.base.callsite import NO_THREAD
from hocket.collectives.base.config import Config
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.job.world import Supply, World
from hocket.control.protocol.coordinator import Coordinator
from hocket.control.protocol.faults import Later, Timer
from hocket.control.protocol.messages import Goodbye, Join, Message, Welcome
from hocket.control.session import Session
from hocket.errors import ArgumentError, Error
from hocket.transports.base import Transport
from hocket.transports.reference import Exchange, ReferenceTransport
from hocket.transports.shm.transport import ThreadTransport
from hocket.transports.shm.window import Window, address_limit, room

Result = TypeVar("Result")
PRIVATE = 1 << 32
"""Bytes of addresses of one rank: 4 GiB, or less where `ulimit -v` is set."""


class Local:
    """The control plane between threads: a coordinator, the ranks' sessions, and a queue between them."""

    def __init__(self, size: int) -> None:
        self.coordinator = Coordinator(size, "local", Welcome())
        self.sessions = [LocalSession(rank, self) for rank in range(size)]
        self._lock = threading.RLock()
        self._queue: collections.deque[tuple[int, Message]] = collections.deque()
        self._timers: list[tuple[float, Timer]] = []
        self._passing = False
        for rank in range(size):
            self.send(rank, Join(rank, size))

    def send(self, by: int, message: Message) -> None:
        """To the coordinator; then all that follows from it.  The timers that are over come first, at the latest now:
        as all ranks answer at once, nobody waits for one."""
        with self._lock:
            self._queue.append((by, message))
            if self._passing:  # what follows from a message that is being passed on
                return
            self._passing = True
            try:
                over = [timer for due, timer in self._timers if due <= time.monotonic()]
                self._timers = self._timers[len(over) :]
                for timer in over:
                    self._pass_on(-1, timer)
                while self._queue:
                    self._pass_on(*self._queue.popleft())
            finally:
                self._passing = False

    def _pass_on(self, by: int, message: Message | Timer) -> None:
        for each in self.coordinator.take(by, message):
            if isinstance(each, Later):
                self._timers.append((time.monotonic() + each.seconds, each.timer))
                self._timers.sort(key=lambda timer: timer[0])
            else:
                self.sessions[each.rank].take(each.message)


class LocalSession(Session):
    """A rank that is a thread."""

    def __init__(self, rank: int, local: Local) -> None:
        super().__init__(rank)
        self._local = local

    def send(self, message: Message) -> None:
        self._local.send(self.rank, message)

    def open(self, transport: str) -> None:
        raise ArgumentError(
            f"this local_world has a transport of its own and cannot use {transport!r}: omit transport="
        )

    def close(self, goodbye: Goodbye | None = None, patient: bool = False) -> None:
        if not self._member.closed:
            self._member.closed = True
            self.send(goodbye or Goodbye({}))


def lone_session() -> Session:
    """The control plane of a job of one rank."""
    return Local(1).sessions[0]


class LocalWorld:
    """n communicators, one for each thread.  A context manager; iterating gives the communicators."""

    def __init__(self, size: int, transport: str = "threads") -> None:
        size = whole(size, "size")
        if size < 1:
            raise ArgumentError(f"local_world({size}): size must be at least 1")
        make = _maker(size, transport)
        self.transport = transport
        sessions = Local(size).sessions
        self.comms: list[Communicator] = []

        def start(rank: int) -> Communicator:
            try:
                return begin(rank)
            except BaseException:
                sessions[rank].close()  # else the others wait for it
                raise

        def begin(rank: int) -> Communicator:
            supply = Supply([transport], lambda name: make(rank), self._check)
            world = World(rank, size, sessions[rank], Config(), supply)
            world.thread = NO_THREAD
            world.why = f"rank {rank} of {size}: a thread of local_world({size})"
            comm = Communicator(world, "world", range(size))
            comm.membership.accept(sessions[rank].exchange(comm.membership.offer(), 30.0))
            return comm

        self.comms = in_threads(start, range(size))

    def run(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> list[Result]:
        """Call function(comm, *args, **kwargs) on every rank, each in its own thread.

        Returns the results by rank.  Raises the first error.
        """

        def call(comm: Communicator) -> Result:
            from hocket.collectives.start import default

            comm.world.thread = threading.get_ident()
            with default.current(comm):
                try:
                    return function(comm, *args, **kwargs)
                except BaseException as error:
                    for each in comm.world.present():  # others may wait on any: a lane, a split
                        each.reporter.give_up(error)
                    raise
                finally:
                    comm.world.thread = NO_THREAD

        return in_threads(call, self.comms)

    def close(self) -> None:
        in_threads(lambda comm: comm.close(), self.comms)

    def _check(self, name: str) -> None:
        if name != self.transport:
            raise ArgumentError(f"transport {name!r} is not known: this local_world has only {self.transport!r}")

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
