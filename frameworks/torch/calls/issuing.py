"""Issuing a call of a process group: at once or with a `Work`, by itself or with others, seen by the profiler.

A synchronous call (`opts.asyncOp` is False: torch's Python functions say so) runs at once in the caller's thread and
returns None; every other one returns a `Work`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.autograd.profiler import record_function

import hocket
from hocket import Communicator
from hocket.extending import outside_group
from hocket.torch.calls.tensors import After, Tensor
from hocket.torch.calls.works import Work
from hocket.torch.errors import as_torch, in_torchs_words

MANY = 64
"""From so many collected works on, those that are over are let go."""
_profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled


def waits(opts: Any) -> bool:
    """Is this a synchronous call?"""
    return opts is not None and getattr(opts, "asyncOp", True) is False


def limit(opts: Any) -> float | None:
    """Seconds, if the options set a limit of their own."""
    timeout = getattr(opts, "timeout", None)
    return timeout.total_seconds() if isinstance(timeout, timedelta) and timeout > timedelta(0) else None


class Issuing:
    """The common base of a process group's calls."""

    comm: Communicator
    always_work = False
    """Does the caller want a `Work` of synchronous calls too?"""
    _together: list[Work] | None = None
    """Between start_coalescing and end_coalescing: the works that were issued, and that torch does not wait for."""
    _batch = threading.local()
    """Its `works`: what `_each` is issuing in this thread."""

    def _run(
        self, name: str, opts: Any, result: Any, call: Callable[..., Any], *args: Any,
        after: Sequence[After | None] = (),
    ) -> Work | None:  # fmt: skip
        """Issue one call; or carry it out, if the caller waits for it anyway."""
        if _profiled():
            with record_function(f"hocket:{name}"):
                return self._issue(opts, result, after, call, *args)
        return self._issue(opts, result, after, call, *args)

    def _issue(
        self, opts: Any, result: Any, after: Sequence[After | None], call: Callable[..., Any], *args: Any
    ) -> Work | None:
        batch = getattr(self._batch, "works", None)
        try:
            if waits(opts) and batch is None:
                with outside_group():  # `after` reads the result
                    call(*args, timeout=limit(opts))
                for act in after:
                    if act is not None:
                        act()
                return Work([], result) if self.always_work else None
            work = Work([call(*args, timeout=limit(opts), async_op=True)], result, after, args)
        except hocket.Error as error:
            raise as_torch(error) from None
        if batch is not None:
            batch.append(work)
        else:
            self._collect(work)
        return work

    def _collect(self, work: Work) -> None:
        """Keep it, between start_coalescing and end_coalescing.  (After an exception torch never calls the second.)"""
        if self._together is not None:
            if len(self._together) >= MANY:
                self._together = [each for each in self._together if not each.over()]
            self._together.append(work)

    def _each(self, opts: Any, issue: Callable[..., Any], *columns: Any) -> Work | None:
        """Several calls issued at once."""
        self._batch.works = []
        try:
            for row in zip(*columns, strict=True):
                issue(*row)
            work = merged(self._batch.works)
        finally:
            self._batch.works = None
        if waits(opts):
            work.wait()
            return work if self.always_work else None
        self._collect(work)
        return work

    def _message(
        self, name: str, call: Callable[..., Any], flat: Tensor, peer: int | None, tag: int, result: Any,
        after: After | None = None,
    ) -> Work:  # fmt: skip
        event = record_function(f"hocket:{name}") if _profiled() else contextlib.nullcontext()
        with in_torchs_words(), event:
            work = Work([call(flat, peer, tag, async_op=True)], result, [after])
        self._collect(work)
        return work

    # --- several as one

    def start_coalescing(self, device: Any = None) -> None:
        self._together = []

    def end_coalescing(self, device: Any = None) -> Work:
        together, self._together = self._together or [], None
        return merged(together)


def merged(works: Sequence[Work]) -> Work:
    """One `Work` that ends with the last of them."""
    handles = [handle for work in works for handle in work._handles]
    after = [act for work in works for act in work._after]
    side = next((work._side for work in works if work._side is not None), None)
    return Work(handles, [work._result for work in works], after, side=side)
