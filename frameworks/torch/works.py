"""torch's Work and Future over hocket's Work.

A future's callbacks run where it is completed, and may call collectives and wait for them; so futures are completed by
a thread of their own, never by the one that makes calls go forward.  On that very thread a future that is asked for
waits at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future

import hocket
from hocket.collectives.handle import Work as Handle
from hocket.collectives.progress import end_after, nudge
from hocket.torch.failing import as_torch
from hocket.torch.tensors import After

_finishing = threading.Lock()


_Base: Any = dist.Work  # torch's stubs do not tell the whole interface


class Work(_Base):  # type: ignore[misc]
    """One call, or several at once (`handles`).  `result`: the tensors it writes; `after`: what is left to do then."""

    def __init__(self, handles: Sequence[Handle], result: Any = None, after: Sequence[After | None] = ()) -> None:
        _Base.__init__(self)
        self._handles, self._result, self._after = handles, result, [each for each in after if each is not None]
        self._ended = False
        self._error: BaseException | None = None
        self._inner: Any = None
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raises the call's error.  `timeout` (0: any) is of this wait alone: the call goes on."""
        limit = timeout.total_seconds() if timeout else None
        if self._error is not None:
            raise self._error
        if not self._ended:
            try:
                for handle in self._handles:
                    if not handle.wait(limit):
                        raise hocket.TimeoutError(f"the call has not ended after {limit:g} s of waiting; it goes on")
            except hocket.TimeoutError as error:
                if all(handle.done() for handle in self._handles):
                    self._error = as_torch(error)
                raise as_torch(error) from None
            except Exception as error:
                self._error = as_torch(error)
                raise self._error from None
            self._finish()
        return True

    def _finish(self) -> None:
        with _finishing:
            if not self._ended:
                for act in self._after:
                    act()
                self._ended = True

    synchronize = wait

    def is_completed(self) -> bool:
        if not self._ended and self._error is None and all(handle.done() for handle in self._handles):
            try:
                self.wait()
            except Exception:
                return True  # kept for `exception`
        return self._ended or self._error is not None

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Any:
        return self._error if self.is_completed() else None

    def result(self) -> Any:
        self.wait()
        return self._result if isinstance(self._result, list) else [self._result]

    def source_rank(self) -> int:
        """Of a recv: whose message it was, as a rank of the group."""
        self.wait()
        found = self._handles[0].source
        return -1 if found is None else found

    _source_rank = source_rank

    def get_future(self) -> Any:
        if self._future is None:
            self._inner = Future()
            # An exception set on a future is a value like others for C++ (DDP would look for tensors in it); one that
            # a callback raises is an error there too.
            self._future = self._inner.then(lambda done: done.value())
            if self.is_completed() or threading.current_thread() is _completer.thread:
                self._complete()
            else:
                _completer.add(self)
        return self._future

    def _complete(self) -> None:
        try:
            self.wait()
        except Exception as error:
            self._inner.set_exception(error)
        else:
            self._inner.set_result(self._result)


class Completer:
    """The thread that completes futures; it sleeps until a call ends somewhere in this process."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._waiting: list[Work] = []
        self._filled = threading.Condition()

    def add(self, work: Work) -> None:
        with self._filled:
            self._waiting.append(work)
            if self.thread is None:
                self.thread = threading.Thread(target=self._serve, name="hocket-futures", daemon=True)
                self.thread.start()
            self._filled.notify()
        nudge()  # it may have ended just before it came here

    def _serve(self) -> None:
        seen = 0
        while True:
            with self._filled:
                while not self._waiting:
                    self._filled.wait()
                ended = [work for work in self._waiting if work.is_completed()]
                self._waiting = [work for work in self._waiting if work not in ended]
            for work in ended:
                work._complete()
            if not ended:
                seen = end_after(seen)
                if not seen:  # the last communicator has gone
                    self.thread = None
                    return


_completer = Completer()
os.register_at_fork(after_in_child=lambda: _completer.__init__())  # type: ignore[misc]
