"""One thread per process for everything cold: rendezvous, the control connections, listeners.

Callbacks run on that thread, one at a time, and must not block.  What other threads ask goes through a queue and a
wake-up pipe, so the state belongs to one thread and needs no lock (nor can a fork copy a held one).  It sleeps in the
kernel while nothing happens.  In a forked child it is inert: the child closes its copies of the sockets, so that the
other ranks still see the connection end when the real owner dies.  Knows nothing of ranks.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import logging
import math
import os
import selectors
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("hocket.control")
Thunk = Callable[[], object]


class File(Protocol):
    """A thing that can be watched: a socket, or another descriptor that becomes readable."""

    def fileno(self) -> int: ...

    def close(self) -> object: ...


class Reactor:
    """Watches sockets and clocks on one daemon thread.  All methods may be called from any thread."""

    def __init__(self) -> None:
        self.lost_after = 5.0
        """Seconds of silence after which the other end of a connection is gone."""
        self.dead = False  # closed, or the copy in a forked child: every method does nothing
        self._selector = selectors.DefaultSelector()
        self._watched: set[File] = set()  # asking the selector for one it lacks makes a slow KeyError
        self._asked: collections.deque[Thunk] = collections.deque()
        self._timers: list[tuple[float, int, Thunk]] = []
        self._count = itertools.count()
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_in, selectors.EVENT_READ, (self._drain, None))
        self._stopping = False
        self._aside: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name="hocket-reactor", daemon=True)
        _all.add(self)
        self._thread.start()

    def add(self, sock: File, readable: Thunk, writable: Thunk | None = None) -> None:
        """Call `readable()` while there is something to read (or an end to see), `writable()` while there is room.

        For a socket that is there already this replaces both.
        """
        self._here(lambda: self._add(sock, readable, writable))

    def remove(self, sock: File, close: bool = False) -> None:
        """Forget the socket; `close` closes it too, once no callback of it can run any more."""
        self._here(lambda: self._remove(sock, close))

    def soon(self, call: Thunk) -> None:
        """Run `call` on the reactor's thread, after what was asked before."""
        if self.dead:
            return
        self._asked.append(call)
        with contextlib.suppress(OSError):  # a full pipe wakes as well; a closed one has nobody to wake
            os.write(self._wake_out, b"!")

    def later(self, seconds: float, call: Thunk) -> None:
        """Run `call` on the reactor's thread in `seconds`; after the sockets that are ready then.  inf: never."""
        if seconds == math.inf:
            return
        entry = (time.monotonic() + seconds, next(self._count), call)
        self._here(lambda: heapq.heappush(self._timers, entry))

    def aside(self, name: str, call: Thunk) -> None:
        """Run `call`, which may wait, on a thread of its own.  It looks at `dead` and ends: `close` waits for it."""

        def run() -> None:
            try:
                call()
            finally:
                self._aside.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"hocket-{name}", daemon=True)
        self._aside.add(thread)
        thread.start()

    def inside(self) -> bool:
        """Is this the reactor's own thread?"""
        return threading.get_ident() == self._thread.ident

    def close(self, timeout: float = 1.0) -> None:
        """Do what was asked so far, then end the thread and close every socket left."""
        if self.dead:
            return
        self.soon(self._stop)
        if not self.inside():
            deadline = time.monotonic() + timeout
            for thread in [self._thread, *list(self._aside)]:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _here(self, call: Thunk) -> None:
        if self.inside():
            if not self.dead:
                call()
        else:
            self.soon(call)

    def _add(self, sock: File, readable: Thunk, writable: Thunk | None) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        if sock in self._watched:
            self._selector.modify(sock, events, (readable, writable))
        else:
            self._selector.register(sock, events, (readable, writable))
            self._watched.add(sock)

    def _remove(self, sock: File, close: bool) -> None:
        if sock in self._watched:
            self._watched.discard(sock)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
        if close:
            sock.close()

    def _stop(self) -> None:
        self._stopping = True

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_in, 4096)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals belong to the main thread
        while not self._stopping:
            left = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            # Sockets before timers: what arrived while this thread could not run must not look late.
            for key, events in self._selector.select(left):
                readable, writable = key.data
                if events & selectors.EVENT_WRITE and writable and self._still(key):
                    self.guard(writable)
                if events & selectors.EVENT_READ and self._still(key):
                    self.guard(readable)
            for _ in range(len(self._asked)):
                self.guard(self._asked.popleft())
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self.guard(heapq.heappop(self._timers)[2])
        self._end()

    def _still(self, key: selectors.SelectorKey) -> bool:
        """An earlier callback of this round may have removed the socket (and another may have its number now)."""
        now = self._selector.get_map().get(key.fileobj) if _number(key.fileobj) >= 0 else None
        return now is not None and now.fileobj is key.fileobj

    def guard(self, call: Thunk) -> None:
        try:
            call()
        except Exception:
            log.exception("hocket: a callback of the control thread failed; the thread goes on")

    def _end(self) -> None:
        """Close everything (at the end of the thread, or in a forked child, where the thread does not exist)."""
        self.dead = True
        for key in list(self._selector.get_map().values()):
            if not isinstance(key.fileobj, int):
                key.fileobj.close()  # type: ignore[attr-defined]
        self._asked.clear()  # nobody runs these any more, and some hold a new connection
        self._timers.clear()
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)


def _number(file: object) -> int:
    return file if isinstance(file, int) else file.fileno()  # type: ignore[attr-defined]


def _forked() -> None:
    for reactor in list(_all):
        if not reactor.dead:
            reactor._end()


_all: weakref.WeakSet[Reactor] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)
