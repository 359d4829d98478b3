"""A submitted tensor until it is done: its handle."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from typing import Any

from hocket.horovod.agreeing.request import Request
from hocket.horovod.exceptions import as_horovod


class Pending:
    """What `submit` returns.  `payload`: the framework's tensors, which are kept until they are carried out."""

    __slots__ = ("began", "error", "hurry", "lock", "payload", "request", "result", "turn")

    def __init__(self, request: Request, payload: Any, hurry: Callable[[Pending], None]) -> None:
        self.request, self.payload, self.hurry = request, payload, hurry
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
        """It is over."""
        self.result, self.error = result, error
        self.payload = None
        self.lock.release()

    def wait(self) -> Any:
        """Wait until it is over.  Its result; raises its error."""
        if self.lock.locked():
            self.hurry(self)
            with self.lock:  # which finish() lets go
                pass
        if self.error is not None:
            raise as_horovod(self.error) from None
        if self.turn is not None:
            self.result, self.turn = self.turn(self.result), None
        return self.result
