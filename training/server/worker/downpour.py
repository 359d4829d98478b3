"""Downpour SGD (Dean et al., NIPS 2012, algorithm 7.1): a worker trains its own copy, and talks every few steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.arguments import unmasked, whole
from hocket.errors import ArgumentError
from hocket.training.server.optimizers import Array
from hocket.training.server.tables import Range
from hocket.training.server.worker.client import Client
from hocket.training.server.worker.handles import Handle


class Downpour:
    """A worker's copy of a `Range`, `parameters`, which stays the same array, and what it has to push.

    Every `n_push` steps the sum of the gradients since the last push is on its way to the table's optimizer ("sgd",
    "adagrad"); every `n_fetch` steps the table's values are, and they are the worker's `n_fetch` steps later.  In
    between the worker steps alone: parameters -= rate * gradient.  Nothing waits but for a push or a fetch that takes
    longer than that.  The clock's rule is that of `serve`; "async" is Downpour's.

    Law: after `finish()` each gradient of each worker was pushed once.  Cost: 4 n bytes each way, every so many steps.

    >>> import hocket, numpy as np
    >>> from hocket.training import SGD, Client, Downpour, Range, serve
    >>> def train(comm):
    ...     tables = {"w": Range(2, optimizer=SGD(0.5))}
    ...     with serve(comm, tables, on=[0], clock="async", works=True) as server, Client(server) as client:
    ...         worker = Downpour(client, "w", rate=0.5, n_push=2, n_fetch=4)
    ...         for _ in range(5):
    ...             worker.step(np.ones(2))
    ...         worker.finish()
    ...         return client.pull("w").tolist()
    >>> hocket.local_world(1).run(train)
    [[-2.5, -2.5]]
    """

    def __init__(self, client: Client, name: str, *, rate: float, n_push: int = 1, n_fetch: int = 1) -> None:
        table = client.table(name)
        if not isinstance(table, Range):
            raise ArgumentError(f"{client.who}: Downpour needs a Range; table {name!r} is {type(table).__name__}")
        if whole(n_push, "n_push") < 1 or whole(n_fetch, "n_fetch") < 1:
            raise ArgumentError(f"{client.who}: n_push={n_push} and n_fetch={n_fetch} must be at least 1")
        self._client, self._name, self._rate, self._every = client, name, rate, (n_push, n_fetch)
        self.parameters: Array = client.pull(name)
        self._accrued, self._sent = np.zeros_like(self.parameters), np.zeros_like(self.parameters)
        self._coming = np.empty_like(self.parameters)
        self._push: Handle | None = None
        self._fetch: Handle | None = None
        self.steps = 0

    def step(self, gradient: Any) -> None:
        """One step with the gradient at `parameters`.  Raises what `push` and `pull` do."""
        unmasked(gradient, "gradient")
        if np.shape(gradient) != self.parameters.shape:
            got, shape = np.shape(gradient), self.parameters.shape
            raise ArgumentError(f"{self._client.who}: the gradient has shape {got}, table {self._name!r} {shape}")
        np.add(self._accrued, gradient, out=self._accrued)
        self.parameters -= self._rate * np.asarray(gradient, self.parameters.dtype)
        self.steps += 1
        n_push, n_fetch = self._every
        if self.steps % n_push == 0:
            self._begin_push()
        if self.steps % n_fetch == 0:
            if self._fetch is not None:
                self._fetch.wait()
                self.parameters[...] = self._coming  # the same array always: a model may hold it
            self._fetch = self._client.pull(self._name, out=self._coming, async_op=True)

    def finish(self) -> None:
        """Push what is left, and take the table's values."""
        self._begin_push()
        for handle in (self._push, self._fetch):
            if handle is not None:
                handle.wait()
        self._push = self._fetch = None
        self._client.pull(self._name, out=self.parameters)

    def _begin_push(self) -> None:
        if self._push is not None:
            self._push.wait()
        self._accrued, self._sent = self._sent, self._accrued
        self._accrued[...] = 0
        self._push = self._client.push(self._name, self._sent, async_op=True)
