"""A model that is larger than a worker's memory, layer by layer: the next ones are pulled while one is computed.

As GeePS does (Cui et al., EuroSys 2016): layers are pulled in the order of their use, in batches, into a staging buffer
that is used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hocket.arguments import whole
from hocket.errors import ArgumentError
from hocket.training.server.optimizers import Array
from hocket.training.server.worker.client import Client
from hocket.training.server.worker.handles import Handle


class Staged:
    """Layers, each a `Range`, in the order in which a pass needs them; `ahead` of them are on their way, or there.

    Iterating yields (name, values); the values are valid until the next one.  One pass at a time: another one meanwhile
    raises ArgumentError.  A backward pass is another `Staged`, of the names in reverse.  What is pushed meanwhile is
    seen where the pull comes behind it: a layer that was pushed in its turn is fresh in the next pass.

    Cost: (ahead + 1) times the largest layer in memory, and a pass takes the longer of computation and pulls where all
    layers are alike.

    >>> import hocket, numpy as np
    >>> from hocket.training import Client, Range, Staged, serve
    >>> def forward(comm):
    ...     tables = {f"layer {i}": Range((2, 2), initial=float(i)) for i in range(5)}
    ...     with serve(comm, tables, on=[0], clock="async", works=True) as server, Client(server) as client:
    ...         x = np.ones(2)
    ...         for name, weights in Staged(client, sorted(tables), ahead=2):
    ...             x = x @ weights + 1
    ...         return x.tolist()
    >>> hocket.local_world(1).run(forward)
    [[633.0, 633.0]]
    """

    def __init__(self, client: Client, names: Sequence[str], *, ahead: int = 1) -> None:
        if whole(ahead, "ahead") < 1:
            raise ArgumentError(f"{client.who}: ahead={ahead} must be at least 1")
        self._client, self._layers = client, [(name, client.range_of(name, "a layer must be")) for name in names]
        nbytes = max((table.size * np.dtype(table.dtype).itemsize for _, table in self._layers), default=0)
        self._under_way = False
        self._buffers = [np.empty(nbytes, np.uint8) for _ in range(min(ahead + 1, len(self._layers)))]

    @property
    def nbytes(self) -> int:
        """Bytes of the staging buffer."""
        return sum(each.nbytes for each in self._buffers)

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        if self._under_way:
            raise ArgumentError(f"{self._client.who}: a pass is under way in these buffers; make another Staged")
        coming: deque[tuple[str, Handle]] = deque()
        place, self._under_way = 0, True
        try:
            while place < len(self._layers) or coming:
                while place < len(self._layers) and len(coming) < len(self._buffers):
                    coming.append(self._begin(place))
                    place += 1
                name, handle = coming[0]
                yield name, handle.wait()
                coming.popleft()
        finally:  # a pass that is left early: the buffers are not ours yet
            self._under_way = False
            for _, handle in coming:
                handle.wait()

    def _begin(self, place: int) -> tuple[str, Handle]:
        name, table = self._layers[place]
        dtype = np.dtype(table.dtype)
        room: Any = self._buffers[place % len(self._buffers)][: table.size * dtype.itemsize]
        return name, self._client.pull(name, out=room.view(dtype).reshape(table.shape), async_op=True)
