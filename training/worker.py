"""A thread that makes calls in the order in which they are given, and holds up nobody's end.

Python joins the threads of `concurrent.futures` before anything else at its end: a rank that raises while such a thread
waits for the others would end no sooner than they come, and tell them nothing.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from hocket.extending import before_close

_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class Worker:
    """One thread, which begins with the first call.

    >>> worker = Worker("hocket-example")
    >>> worker.submit(max, 2, 3).result()
    3
    """

    def __init__(self, name: str) -> None:
        self.last: Future[Any] | None = None
        """The latest call's result."""
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_carry_out, args=(self._calls,), name=name, daemon=True)
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(self, call: Callable[..., Any], *args: Any, comm: Any = None) -> Future[Any]:
        """Call this on the thread, behind what was given before.

        `comm`: a communicator of the job; unless that fails, it does not end before this call.
        """
        self.last = future = Future[Any]()
        if comm is not None:
            before_close(comm, future)
        self._calls.put((future, call, args))
        if self._thread.ident is None:
            self._thread.start()
        return future

    def settle(self) -> None:
        """Wait for what was given before."""
        if self.last is not None:
            wait([self.last])

    def close(self) -> None:
        """End when all is done."""
        self._calls.put(None)
        if self._thread.ident is not None:
            self._thread.join()


def _carry_out(calls: queue.SimpleQueue[_Call | None]) -> None:
    while (item := calls.get()) is not None:
        future, call, args = item
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)
        del item, future, call, args  # or they would live until the next call
