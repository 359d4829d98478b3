"""Waiting for several works: MPI's Waitall, Waitany and Testany."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hocket.collectives.calls.user_ops import refuse_inside
from hocket.collectives.waiting import queued
from hocket.collectives.waiting.pool import pool
from hocket.collectives.waiting.work import Work
from hocket.errors import ArgumentError


def wait_all(works: Sequence[Work], timeout: float | None = None) -> bool:
    """Wait until all have ended.  Raises the first error among them, in their order.

    Returns False if some have not ended after `timeout` seconds; they go on.
    """
    works = _checked(works)
    deadline = None if timeout is None else time.monotonic() + timeout
    return all(work.wait(None if deadline is None else max(0.0, deadline - time.monotonic())) for work in works)


def wait_any(works: Sequence[Work], timeout: float | None = None) -> int | None:
    """Wait until one has ended, and return its place; of several the first.  Raises its error.

    None: after `timeout` seconds none had ended.

    >>> import hocket, numpy as np
    >>> def first(comm):
    ...     works = [comm.allreduce(np.ones(n), async_op=True) for n in (4, 8)]
    ...     place = hocket.wait_any(works)
    ...     return works[place].done() and hocket.wait_all(works)
    >>> hocket.local_world(2).run(first)
    [True, True]
    """
    works = _checked(works)
    if all(work._queued.status == 0 for work in works):
        refuse_inside()
        queued.wait_any([work._queued for work in works], -1.0 if timeout is None else max(0.0, timeout))
    return test_any(works)


def test_any(works: Sequence[Work]) -> int | None:
    """The place of the first that has ended, or None.  Never blocks.  Raises that one's error."""
    for place, work in enumerate(_checked(works)):
        if work.done():
            work.wait()
            return place
    return None


def drive(works: Sequence[Work], still: float) -> None:
    """Drive them for as long as data moves: until all have ended, or nothing has moved for `still` seconds.

    What their `then` was given is called in this thread: no other has to be woken for it.  For a thread that will sleep
    where it cannot drive.  Raises nothing: what has failed is told by `wait`.
    """
    left = [work._queued for work in works if not work._queued.needs_callers]
    ended = True
    while left and ended:
        taken, ours = pool.take(left), left.pop(0)
        try:
            ended = ours.status != 0 or ours.wait(still=still)
        finally:  # what is called now may wait for the others' callbacks
            pool.give([each for each in taken if not ended or each.run is not ours])
        for each in taken:
            if ended and each.run is ours:
                each.carry_out()


def put_off(works: Sequence[Work], threads: float) -> None:
    """Where ranks that compute with so many threads each leave no core free, these go forward in waits alone.

    For a caller that is sure to wait soon, for any work: to compute and to communicate at once takes longer there than
    one after the other (docs/performance.md).  They go forward anyway after a second, or where the process computes
    no more.
    """
    for work in works:
        work._queued.put_off(threads)


def _checked(works: Sequence[Work]) -> list[Work]:
    if isinstance(works, Work):
        raise ArgumentError("works must be a list: pass [work], or call work.wait()")
    listed = list(works)
    for work in listed:
        if not isinstance(work, Work):
            raise ArgumentError(f"a {type(work).__name__} is not a Work: calls with async_op=True return them")
    if not listed:
        raise ArgumentError("works is empty: there is nothing to wait for")
    return listed
