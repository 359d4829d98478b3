"""`Work`: the handle of an asynchronous call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

from hocket.collectives.calls.functions import refuse_inside
from hocket.collectives.engine.engine import CODES
from hocket.collectives.waiting.pool import pool
from hocket.collectives.waiting.queued import Queued

DONE = CODES["done"]
LOOK = 0.0005
"""Seconds between two looks of a coroutine at a work that only its own calls drive."""


class Work:
    """The handle of an asynchronous call (`async_op=True`).  `y = await comm.allreduce(x, async_op=True)` works too."""

    def __init__(self, queued: Queued, result: Any, settle: Callable[[Queued], None], stream: int = 0) -> None:
        self._queued, self._result, self._settle = queued, result, settle
        self._turn: Callable[[Any], Any] | None = None
        self.stream = stream
        """The address of the CUDA stream that orders a call on GPU arrays, which has ended when it has been issued.
        0: its arrays are on the host, or went through host memory."""

    def done(self) -> bool:
        """Has it ended (well or not)?  Never blocks."""
        if self._queued.needs_callers:
            self._queued.wait(0.0)
        return self._queued.status != 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, and drive it meanwhile.  Raises its error.

        Returns False if it has not ended after `timeout` seconds (0: one try); the call goes on.
        """
        if self._queued.status == 0:
            refuse_inside()
        try:
            if not self._queued.wait(-1.0 if timeout is None else max(0.0, timeout)):
                return False
            self._settle(self._queued)
        except SystemExit:
            self._queued.broken_off = True
            raise
        self._settle = _settled
        self._queued.let_go()
        return True

    def drive(self, still: float) -> None:
        """Drive it for as long as data moves: until it has ended, or nothing has moved for `still` seconds.

        For a thread that will sleep where it cannot drive.  Raises nothing: what has failed is told by `wait`.
        """
        if self._queued.status == 0 and not self._queued.needs_callers:
            self._queued.wait(still=still)

    def look(self, seconds: float) -> None:
        """What waiting threads do now and then, for one that has slept for `seconds`."""
        self._queued.look(seconds)

    def giving(self, result: Any) -> Work:
        """The same call, of which this is the result."""
        self._result = result
        return self

    def turned(self, turn: Callable[[Any], Any]) -> Work:
        """The same call, of which `turn` of its result is the result."""
        self._turn = turn
        return self

    def __repr__(self) -> str:
        """The call, and how it stands, as far as is known without driving it."""
        status = self._queued.status
        state = "under way" if status == 0 else "done" if status == DONE else "failed"
        return f"<Work {self._queued.words}: {state}>"

    @property
    def source(self) -> int | None:
        """The rank whose message a recv took, once it has ended."""
        return self._queued.plan.source

    def result(self) -> Any:
        """Wait, and return what the blocking call would have returned."""
        self.wait()
        return self._result if self._turn is None else self._turn(self._result)

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio  # slow to import, and only those who await need it

        loop = asyncio.get_running_loop()
        if self._queued.needs_callers:  # perhaps only this thread's calls
            while not self._queued.wait(0.0):
                yield from asyncio.sleep(LOOK).__await__()
        elif not self.done():
            told: asyncio.Future[None] = loop.create_future()
            pool.add(_Coroutine(self._queued, told))
            yield from told.__await__()
        return self.result()


def _settled(queued: Queued) -> None:
    """It was settled before."""


class _Coroutine:
    """A coroutine that awaits a work.  (No thread waits for it: many may await works that only end together.)"""

    def __init__(self, queued: Queued, told: Any) -> None:
        self._queued, self._told = queued, told

    def over(self) -> bool:
        return self._queued.status != 0 or self._told.done()  # cancelled, if it was not told

    def complete(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._told.get_loop().call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self._told.done():
            self._told.set_result(None)

    def look(self, seconds: float) -> None:
        self._queued.look(seconds)
