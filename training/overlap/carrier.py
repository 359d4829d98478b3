"""The carrier of the units of one lane: asynchronous calls, or a thread whose calls a compressor makes."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any

from hocket.compression import Bucket, Compressor, Method
from hocket.errors import ArgumentError
from hocket.extending import Aside
from hocket.training.overlap.arrays import seen
from hocket.training.worker import Worker


class Carrier:
    """Averages vectors over the ranks of a lane, in the order of the calls.

    `passes`: addends of each vector on this rank, where averages are exact; 0: they are not.

    A `Compressor` makes several calls for a vector, each of which needs the one before.  So a thread makes all calls of
    its lane: one thread for all lanes would be one credit for all, and deadlock.
    """

    def __init__(self, comm: Any, codec: Any, method: Method | None, passes: int = 0) -> None:
        self.comm, self.codec, self.passes = comm, codec, passes
        self.compressor = None if method is None else Compressor(comm, method)
        self._thread = None if method is None else Worker("hocket-lane")
        self._aside: Aside | None = None
        """The thread's stream, where vectors are on a GPU."""

    def average(self, x: Any, tensors: Sequence[tuple[str, Sequence[int]]], rows: Any = None) -> Any:
        """Begin to average a vector in place.  Its work.  `rows`: its addends, of which it becomes the average.

        `tensors`: the names and shapes of those that it holds, () for what must be exact.  A compressor has each of
        them whole, as some methods look at rows and columns.
        """
        single = str(x.dtype).endswith("float32") and bool(tensors)
        if rows is not None:
            return self.comm.allreduce(rows, "avg", x, async_op=True, order="exact", axis=0)
        if self.passes:
            return self.comm.allreduce(x, "avg", async_op=True, order="exact")
        if self._thread is None:
            return self.comm.allreduce(x, "avg", async_op=True, codec=self.codec if single else None)
        assert self.compressor is not None
        aside = self._aside = self._aside or Aside(x)
        aside.behind()
        if not single:
            return Threaded(self._thread.submit(_within, aside, self.comm.allreduce, x, "avg", comm=self.comm), aside)
        names, shapes = zip(*tensors, strict=True)
        bucket = Bucket.of(seen(x), shapes, names)
        call = self.compressor.allreduce_all
        return Threaded(self._thread.submit(_within, aside, call, bucket, comm=self.comm), aside)

    def state(self) -> Any:
        """The vectors that its compressor owes, when what was begun before has ended."""
        assert self.compressor is not None
        read = self.compressor.state_dict
        return read() if self._thread is None else self._thread.submit(read).result()

    def settle(self) -> None:
        """Wait for what was begun before."""
        if self._thread is not None:
            self._thread.settle()

    def close(self) -> None:
        """End the lane; all its ranks together."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None  # the communicator says that it is closed
        self.comm.close()


def _within(aside: Aside, call: Any, *args: Any) -> None:
    with aside.work():
        call(*args)


class Threaded:
    """A call that a thread makes, as a work."""

    def __init__(self, future: concurrent.futures.Future[Any], aside: Aside) -> None:
        self._future, self._aside = future, aside

    def done(self) -> bool:
        return self._future.done()

    def wait(self, timeout: float | None = None) -> bool:
        """False: `timeout` seconds were too few.  Raises the call's error."""
        if not concurrent.futures.wait([self._future], timeout).done:
            return False
        self._future.result()
        self._aside.join()
        return True


def restore(compressors: Sequence[Compressor], states: Sequence[Any]) -> None:
    """Go on from these states, one for each; no states: from before the first step, when nothing was owed."""
    states = states or [{**each.state_dict(), "entries": {}} for each in compressors]
    if len(compressors) != len(states):
        raise ArgumentError(f"load_state_dict(): the state has {len(states)} lanes, this scheduler {len(compressors)}")
    for compressor, state in zip(compressors, states, strict=True):
        compressor.load_state_dict(state)
