"""A submitted tensor until it is done: its handle."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from typing import Any

from hocket.training.agreeing.request import Request


class Pending:
    """A handle that `submit` returns.  `payload`: the framework's tensors, which are kept until they are carried out.
    """

    __slots__ = ("_turned", "began", "error", "hurry", "lock", "payload", "request", "result", "turn")

    def __init__(
        self, request: Request, payload: Any, hurry: Callable[[Pending], None],
        turned: Callable[[BaseException], BaseException],
    ) -> None:  # fmt: skip
        self.request, self.payload, self.hurry, self._turned = request, payload, hurry, turned
        self.result: Any = None
        self.turn: Callable[[Any], Any] | None = None
        """Makes of the result what `wait` returns."""
        self.error: BaseException | None = None
        self.began = time.monotonic()
        self.lock = _thread.allocate_lock()
        self.lock.acquire()

    def done(self) -> bool:
        """Is it over, well or not?"""
        return not self.lock.locked()

    def finish(self, result: Any, error: BaseException | None = None) -> None:
        """The call is over."""
        self.result, self.error = result, error
        self.payload = None
        self.lock.release()

    def over(self, timeout: float) -> bool:
        """Wait until it is over, so many seconds at most; -1: for ever.  Is it?"""
        if self.lock.locked():
            self.hurry(self)
            if not self.lock.acquire(timeout=timeout):  # which finish() lets go
                return False
            self.lock.release()
        return True

    def wait(self) -> Any:
        """Wait until it is over.  Its result; raises its error."""
        self.over(-1)
        if self.error is not None:
            raise self._turned(self.error) from None
        if self.turn is not None:
            self.result, self.turn = self.turn(self.result), None
        return self.result
