"""torch's Work and Future over hocket's Work.

A future's callbacks run where it is completed, and may call collectives and wait for them; so futures are completed by
threads of their own, never by the one that makes calls go forward.  With CUDA tensors that is when the call has been
issued, and in the order of its stream (streams.py), as with NCCL.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.variable import Variable
from torch.futures import Future

import hocket
from hocket import Work as Handle
from hocket.extending import drive, put_off
from hocket.torch.calls.streams import Side, side_of
from hocket.torch.calls.tensors import After
from hocket.torch.errors import as_torch

_finishing = threading.RLock()
_asked: dict[int, list[Handle]] = {}
"""By backward pass: what its end will wait for."""
PASSES = 16
"""Backward passes that are remembered; those that raised never come to their end."""
_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_at_the_end: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback
STILL = 0.05
"""Seconds without any data after which the end of a backward pass drives no longer: other ranks are not there yet."""


_Base: Any = dist.Work  # torch's stubs do not tell the whole interface


class Work(_Base):  # type: ignore[misc]
    """One call, or several at once (`handles`).  `result`: the tensors it writes; `after`: what is left to do then.

    `given`: the tensors that it uses.
    """

    def __init__(
        self, handles: Sequence[Handle], result: Any = None, after: Sequence[After | None] = (), given: Any = (),
        side: Side | None = None,
    ) -> None:  # fmt: skip
        _Base.__init__(self)
        self._handles, self._result, self._after = handles, result, [each for each in after if each is not None]
        self._side = side or side_of(handles, [given, result])
        if self._side is not None and handles:
            self._side.keep([given, result])
        self._ended = False
        self._error: BaseException | None = None
        self._inner: Any = None
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raises the call's error.  `timeout` (0: none) limits this wait alone: the call goes on."""
        if self._error is not None:
            raise self._error
        until = time.monotonic() + timeout.total_seconds() if timeout else None
        for handle in [] if self._ended else self._handles:
            try:
                over = handle.wait(None if until is None else max(0.0, until - time.monotonic()))
            except Exception as error:
                self._error = as_torch(error)
                raise self._error from None
            if not over:
                raise as_torch(hocket.TimeoutError(f"the call has not ended after {timeout}; it goes on"))
        self._finish()
        if self._side is not None:
            self._side.follow()
        return True

    def _finish(self) -> None:
        """Do the work that is left, once; an error there is the call's."""
        with _finishing:
            if self._ended:
                return
            try:
                with contextlib.nullcontext() if self._side is None else self._side.current():
                    for act in self._after:
                        act()
            except Exception as error:
                self._error = error
                raise
            if self._side is not None and self._handles:  # else it was marked when the call was made
                self._side.mark()
            self._ended = True

    def over(self) -> bool:
        """Has it ended, well or not?  Never waits, and raises nothing."""
        return self._ended or self._error is not None or all(handle.done() for handle in self._handles)

    synchronize = wait

    def is_completed(self) -> bool:
        """Has it ended?  With CUDA tensors: on the GPU too?"""
        if not self._ended and self._error is None and self.over():
            with contextlib.suppress(Exception), self._apart():  # kept for `exception`
                self.wait()
        return self._error is not None or (self._ended and (self._side is None or self._side.is_past()))

    def _apart(self) -> Any:
        """A context in which to wait makes no other stream follow."""
        return contextlib.nullcontext() if self._side is None else self._side.current()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Any:
        return self._error if self.is_completed() else None

    def result(self) -> Any:
        self.wait()
        return self._result if isinstance(self._result, list) else [self._result]

    def source_rank(self) -> int:
        """The rank in the group whose message a recv took."""
        self.wait()
        found = self._handles[0].source
        return -1 if found is None else found

    _source_rank = source_rank

    def get_future(self) -> Any:
        with _finishing:
            if self._future is not None:
                return self._future
            self._inner = Future() if self._side is None else Future(devices=[self._side.device])
            # An exception set on a future is a value like others for C++ (DDP would look for tensors in it); one that
            # a callback raises is an error there too.
            self._future = self._inner.then(unpacked)
        if self.over():
            self._complete()
        else:
            under_way = list(range(len(self._handles)))

            def ended(_: Handle) -> None:
                if under_way.pop() == 0:  # the last one; of several threads only one gets the 0
                    self._complete()

            # torch's reducer, which asks in a backward pass, sleeps at the pass's end in C++, behind `_drive`.  To
            # drive there takes the core from nobody; to drive before does, where none is free.
            task = _graph_task() if self._side is None else -1
            if task != -1:
                put_off(self._handles, torch.get_num_threads())
            for handle in self._handles:
                handle.then(ended)
            if task != -1:
                if task not in _asked:
                    _at_the_end(partial(_drive, task))
                    while len(_asked) >= PASSES:
                        del _asked[next(iter(_asked))]
                _asked.setdefault(task, []).extend(self._handles)
        return self._future

    def _complete(self) -> None:
        """Complete the future, in the order of the call's stream; its callbacks run here."""
        with self._apart():
            try:
                self.wait()
            except Exception as error:
                self._inner.set_result(ErrorValue(error))
            else:
                self._inner.set_result(self._result)


def _drive(task: int) -> None:
    drive(_asked.pop(task), STILL)


class ErrorValue:
    """An error as a future's value, which torch may pickle to look for tensors; not every error can be pickled."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return str, (str(self.error),)


def unpacked(done: Any) -> Any:
    """A future's value; an error that is one is raised."""
    value = done.value()
    if isinstance(value, ErrorValue):
        raise value.error
    return value
