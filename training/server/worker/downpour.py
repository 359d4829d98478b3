"""Downpour SGD (Dean et al., NIPS 2012, algorithm 7.1): a worker trains its own copy, and talks every few steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.arguments import kind, unmasked, whole
from hocket.errors import ArgumentError
from hocket.training.flat import Flat, flat
from hocket.training.optimizers import Optimizer
from hocket.training.server.optimizers import Array
from hocket.training.server.tables import Range
from hocket.training.server.worker.client import Client
from hocket.training.server.worker.handles import Handle


class Downpour:
    """A worker's own copy of some `Range`s, which it trains alone between two talks with the servers.

    `parameters`: arrays by the names of their tables, of their shapes; or `hocket.torch.training.parameters(module)`.
    They are changed in place, and begin with the tables' values.  `optimizer` (SGD, Adagrad, ...) is the worker's own,
    whose state nobody else sees; the tables have theirs: Adagrad there is what Downpour advises.

    Every `n_push` steps the sum of the gradients since the last push is on its way to the tables' optimizers; every
    `n_fetch` steps the tables' values are, and they are the worker's `n_fetch` steps later.  Nothing waits but for a
    push or a fetch that takes longer than that.  The clock's rule is that of `serve`; "async" is Downpour's.

    Law: after `finish()` each gradient of each worker was pushed once.  Cost: 4 n bytes each way, every so many steps;
    four vectors of the parameters' size, a fifth in `step`, and what `optimizer` keeps.

    >>> import hocket, numpy as np
    >>> from hocket.training import SGD, Client, Downpour, Range, serve
    >>> def train(comm):
    ...     tables, theta = {"w": Range(2, optimizer=SGD(0.5))}, {"w": np.empty(2, np.float32)}
    ...     with serve(comm, tables, on=[0], clock="async", works=True) as server, Client(server) as client:
    ...         worker = Downpour(client, theta, optimizer=SGD(0.5), n_push=2, n_fetch=4)
    ...         for _ in range(5):
    ...             worker.step({"w": np.ones(2)})
    ...         worker.finish()
    ...         return theta["w"].tolist()
    >>> hocket.local_world(1).run(train)
    [[-2.5, -2.5]]
    """

    def __init__(
        self, client: Client, parameters: Any, *, optimizer: Optimizer, n_push: int = 1, n_fetch: int = 1
    ) -> None:  # fmt: skip
        if whole(n_push, "n_push") < 1 or whole(n_fetch, "n_fetch") < 1:
            raise ArgumentError(f"{client.who}: n_push={n_push} and n_fetch={n_fetch} must be at least 1")
        self._flat: Flat = flat(parameters)
        self._flat.stay()  # pushes and pulls are of host memory
        self._names = [*self._flat.arrays]
        for name in self._names:
            table, shape = client.table(name), self._flat.shapes[name]
            if not isinstance(table, Range) or table.mean:
                what = "mean=True" if isinstance(table, Range) else kind(table)
                raise ArgumentError(f"{client.who}: Downpour needs Ranges without mean; table {name!r} is {what}")
            if (table.shape, table.dtype) != (shape, self._flat.dtype.name):
                got = f"{self._flat.dtype}{list(shape)}"
                raise ArgumentError(f"{client.who}: parameter {name!r} is {got}, and its table {table.said()}")
        self._client, self._optimizer, self._every = client, optimizer, (n_push, n_fetch)
        self._slots = {name: np.zeros(self._flat.size, self._flat.dtype) for name in optimizer.slots}
        self._values, self._accrued, self._sent, self._coming = (
            np.zeros(self._flat.size, self._flat.dtype) for _ in range(4)
        )
        self._pushes: list[Handle] = []
        self._fetches: list[Handle] = []
        self.steps = 0
        self._fetch()
        self._take()

    def step(self, gradients: Mapping[str, Any]) -> None:
        """One step with the gradients at the parameters, by name, which may be None.  Raises as `push` and `pull`."""
        gradient = self._gathered(gradients)
        n_push, n_fetch = self._every
        self._accrued += gradient
        self._flat.held.check()
        self._flat.read(self._names, self._values)
        self.steps += 1
        self._optimizer.apply(self._values, gradient, self._slots, self.steps)
        self._flat.write(self._names, self._values)
        if self.steps % n_push == 0:
            self._push()
        if self.steps % n_fetch == 0:
            if self._fetches:
                self._take()
            self._fetch()

    def finish(self) -> None:
        """Push what is left, and take the tables' values."""
        self._push()
        self._wait(self._pushes)
        self._wait(self._fetches)
        self._fetch()
        self._take()

    def _gathered(self, gradients: Mapping[str, Any]) -> Array:
        """A new vector of them."""
        who, shapes = self._client.who, self._flat.shapes
        if not isinstance(gradients, Mapping) or set(gradients) != set(shapes):
            raise ArgumentError(f"{who}: gradients must be by name, of {', '.join(shapes)}; got {kind(gradients)}")
        vector = np.zeros(self._flat.size, self._flat.dtype)
        for name, part in zip(self._names, self._flat.parts(self._names, vector), strict=True):
            each = gradients[name]
            if each is not None:
                unmasked(each, f"the gradient of {name!r}")
                if (got := tuple(np.shape(each))) != shapes[name]:
                    raise ArgumentError(f"{who}: the gradient of {name!r} has shape {got}, its table {shapes[name]}")
                self._flat.read([name], part.reshape(-1), gradients)
        return vector

    def _push(self) -> None:
        self._wait(self._pushes)
        self._accrued, self._sent = self._sent, self._accrued
        self._accrued[...] = 0
        parts = self._flat.parts(self._names, self._sent)
        self._pushes = [
            self._client.push(name, part, async_op=True) for name, part in zip(self._names, parts, strict=True)
        ]

    def _fetch(self) -> None:
        parts = self._flat.parts(self._names, self._coming)
        self._fetches = [
            self._client.pull(name, out=part, async_op=True) for name, part in zip(self._names, parts, strict=True)
        ]

    def _take(self) -> None:
        """The parameters are what was fetched."""
        self._wait(self._fetches)
        self._flat.write(self._names, self._coming)

    def _wait(self, handles: list[Handle]) -> None:
        while handles:
            handles.pop().wait()
