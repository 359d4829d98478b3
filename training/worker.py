"""A thread that makes calls in the order in which they are given, and holds up nobody's end.

Python joins the threads of `concurrent.futures` before anything else at its end: a rank that raises while such a thread
waits for the others would end no sooner than they come, and tell them nothing.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

LEAVING = 5.0
"""Seconds in which what is under way may end where the program has ended well; `Communicator.close` waits as long."""
_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


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
        _workers.add(self)

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call this on the thread, behind what was given before."""
        self.last = future = Future[Any]()
        self._calls.put((future, call, args))
        if self._thread.ident is None:
            self._thread.start()
        return future

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


@atexit.register
def _end() -> None:
    """Before this rank leaves the job: let what is under way end, unless the program has failed."""
    if getattr(sys, "last_exc", None) is None and getattr(sys, "last_value", None) is None:
        wait([each.last for each in _workers if each.last is not None], LEAVING)
