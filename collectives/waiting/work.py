"""`Work`: the handle of an asynchronous call."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from hocket.collectives.calls.user_ops import refuse_inside
from hocket.collectives.engine.engine import CODES
from hocket.collectives.waiting.pool import pool
from hocket.collectives.waiting.queued import Queued

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("hocket")
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

    def cancel(self) -> bool:
        """Take back a recv for which nothing has come.  True: it takes no message, and its result is None.

        False: it has taken a message, or has failed; then nothing changes.  A second call says the same.  The message
        that it would have taken is the next recv's.  Raises ArgumentError for other calls, as the other ranks count on
        them.  MPI's Cancel.

        >>> import hocket, numpy as np
        >>> def waiting(comm):
        ...     work = comm.recv(np.empty(1), comm.rank, async_op=True)     # from this rank, which sends nothing
        ...     return work.cancel(), work.result()
        >>> hocket.local_world(1).run(waiting)[0]
        (True, None)
        """
        if not self._queued.cancel():
            return False
        self._result, self._settle, self._turn = None, _settled, None
        self._queued.let_go()
        return True

    def then(self, callback: Callable[[Work], object]) -> None:
        """Call callback(work) once, when the call has ended, well or not.

        It is called in one of hocket's own threads; in this one, before `then` returns, if the call has ended already.
        It may take long, make calls and wait for works: other threads drive what is queued meanwhile.  `work.wait()`
        raises the call's error there.  What the callback itself raises is logged, and nothing else comes of it.
        Several callbacks of one work may run in any order.  As `add_done_callback` of concurrent.futures.

        >>> import hocket, numpy as np, threading
        >>> def summed(comm):
        ...     sums, told = [], threading.Event()
        ...     work = comm.allreduce(np.ones(2), async_op=True)
        ...     work.then(lambda ended: (sums.append(ended.result().tolist()), told.set()))
        ...     told.wait()
        ...     return sums
        >>> hocket.local_world(2).run(summed)[0]
        [[2.0, 2.0]]
        """
        if self._queued.status == 0:
            pool.add(self._queued, partial(callback, self))
            return
        try:
            callback(self)
        except Exception:
            log.exception("hocket: an error in a callback of %s", self._queued.words)

    def ending(self, act: Callable[[], None]) -> Work:
        """The same call, and then `act`, in the thread that waits.  Two threads that wait at once may both call it."""
        settle = self._settle

        def both(queued: Queued) -> None:
            settle(queued)
            act()

        self._settle = both
        return self

    def giving(self, result: Any) -> Work:
        """The same call with this result."""
        self._result = result
        return self

    def turned(self, turn: Callable[[Any], Any]) -> Work:
        """The same call, whose result() returns turn(result)."""
        self._turn = turn
        return self

    def __dir__(self) -> list[str]:
        """Names that a user may call, for completion; not those for other parts of the library."""
        hidden = {"ending", "giving", "turned", *vars(self)} - {"stream"}
        return [name for name in super().__dir__() if name not in hidden]

    def __repr__(self) -> str:
        """The call, and how it stands, as far as is known without driving it."""
        status = self._queued.status
        state = "under way" if status == 0 else "done" if status == DONE else "failed"
        return f"<Work {self._queued.words}: {state}>"

    @property
    def source(self) -> int | None:
        """The rank whose message a recv took, once it has ended."""
        return self._queued.source

    @property
    def tag(self) -> int | None:
        """That message's tag."""
        return self._queued.tag

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
            ended: asyncio.Future[None] = loop.create_future()

            def tell() -> None:
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    loop.call_soon_threadsafe(_complete, ended)

            added = pool.add(self._queued, tell)
            try:
                yield from ended.__await__()
            except BaseException:  # it was cancelled
                pool.remove([added])
                raise
        return self.result()


def _settled(queued: Queued) -> None:
    """Nothing: these works were settled before."""


def _complete(ended: asyncio.Future[None]) -> None:
    if not ended.done():  # cancelled
        ended.set_result(None)
