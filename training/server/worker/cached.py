"""A GPU's memory as a cache of the servers' parameters: what fits stays there, the rest is moved ahead of its use.

All values that were pulled lie in pinned host memory.  The first layers have memory of their own on the GPU; the others
pass through a few buffers there, which are filled in a stream beside the caller's.  So a model may be larger than the
GPU.

Source: Cui et al., "GeePS: scalable deep learning on distributed GPUs with a GPU-specialized parameter server", EuroSys
2016.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hocket.arguments import whole
from hocket.compression.memory import empty, filled, namespace
from hocket.errors import ArgumentError
from hocket.extending import Aside, on_host, pinned
from hocket.training.server.worker.client import Client
from hocket.training.server.worker.handles import Handle


class Cached:
    """Layers, each a `Range`, for passes of a GPU: iterating pulls them, `again` has the same values in reverse.

    `like`: an array on the GPU (CuPy's or torch's).  `room`: bytes of its memory that this may take.  `ahead`: layers
    that are on their way before they are needed.  Both passes yield (name, values), which are valid until the next one:
    the caller's stream waits for them, and not the host.  A pass waits for the GPU once, until the copies of the one
    before have ended.  Gradients are pushed by the client, from host memory.

    Memory: all layers in pinned host memory, and `room` on the GPU.  Raises ArgumentError where `room` is not enough
    for the buffers, MemoryError where the GPU has not so much.
    """

    def __init__(self, client: Client, names: Sequence[str], like: Any, *, room: int, ahead: int = 1) -> None:
        if whole(ahead, "ahead") < 1:
            raise ArgumentError(f"{client.who}: ahead={ahead} must be at least 1")
        if on_host(like):
            raise ArgumentError(f"{client.who}: like must be an array on a GPU; for host memory there is Staged")
        self._client, self._names, self._ahead = client, [*names], ahead
        tables = [client.range_of(name, "a layer must be") for name in names]
        sizes = [table.size * np.dtype(table.dtype).itemsize for table in tables]
        self._stays, self._spare = _fitting(sizes, whole(room, "room"), ahead, client.who)
        most = max(sizes[self._stays :], default=0)
        memory = [empty(like, nbytes, "uint8") for nbytes in (*sizes[: self._stays], *[most] * self._spare)]
        self._host: list[Any] = []
        self._there: list[Any] = []
        """By layer; those that do not stay share memory."""
        for place, (table, nbytes) in enumerate(zip(tables, sizes, strict=True)):
            dtype, shape, own = np.dtype(table.dtype), table.shape, memory[self._slot(place)]
            self._host.append(pinned(like, nbytes).view(dtype).reshape(shape))
            self._there.append(own[:nbytes].view(getattr(namespace(own), dtype.name)).reshape(shape))
        self._holds: dict[int, int] = {}
        """The layer whose values of this pass each memory has."""
        self._aside, self._pulled = Aside(like), False

    @property
    def stays(self) -> list[str]:
        """The layers that stay on the GPU from a pass to its reverse."""
        return self._names[: self._stays]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        self._aside.settle()  # it reads the host memory that is written now
        self._pulled, coming = False, dict[int, Handle]()
        self._holds.clear()
        try:
            for place, name in enumerate(self._names):
                ahead = range(place, min(place + self._ahead + 1, len(self._names)))
                for each in ahead:
                    if each not in coming:
                        coming[each] = self._client.pull(self._names[each], out=self._host[each], async_op=True)
                coming[place].wait()
                self._arrive(place, [each for each in ahead if coming[each].done()])
                yield name, self._there[place]
            self._pulled = True
        finally:  # a pass that is left early: the memory is not ours yet
            for handle in coming.values():
                handle.wait()

    def again(self) -> Iterator[tuple[str, Any]]:
        """The layers in reverse, with the values of the last pass: nothing is pulled."""
        if not self._pulled:
            raise ArgumentError(f"{self._client.who}: again() comes behind a whole pass, which has pulled all layers")
        for place in reversed(range(len(self._names))):
            self._arrive(place, range(place, max(place - self._ahead - 1, -1), -1))
            yield self._names[place], self._there[place]

    def _slot(self, place: int) -> int:
        """The memory of a layer."""
        return place if place < self._stays else self._stays + (place - self._stays) % self._spare

    def _arrive(self, place: int, ready: Iterable[int]) -> None:
        """Let the caller's stream wait for a layer; begin to copy the next ones that are ready."""
        self._move(place)
        self._aside.join()
        for each in ready:
            self._move(each)

    def _move(self, place: int) -> None:
        if self._holds.get(self._slot(place)) != place:
            self._holds[self._slot(place)] = place
            self._aside.behind()  # the caller's use of what was there
            with self._aside.work():
                filled(self._there[place], self._host[place])


def _fitting(sizes: Sequence[int], room: int, ahead: int, who: str) -> tuple[int, int]:
    """The number of layers that stay in so many bytes, and that of the buffers for the rest.

    >>> _fitting([4, 4, 2, 2, 2], 12, 1, "")
    (2, 2)
    """
    for stays in range(len(sizes), -1, -1):
        buffers = min(ahead + 1, len(sizes) - stays)
        needed = sum(sizes[:stays]) + buffers * max(sizes[stays:], default=0)
        if needed <= room:
            return stays, buffers
    raise ArgumentError(f"{who}: room={room} bytes are too few: {buffers} buffers of the largest layer are {needed}")
