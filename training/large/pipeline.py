"""`Pipeline`: each rank has a stage of the model, and passes micro-batches on.

Law: gradients are those of all micro-batches on one rank, in their order, bit for bit, by either schedule (orders.py:
order of passes, bubbles, what is kept).  Messages are matched by tags, and go side by side behind the computation, so
there is no order of sends that could be wrong.  Bytes of a rank in a step: its activations to the next stage, and as
many gradients to the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hocket.arguments import choices, whole
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.agreeing import agree
from hocket.training.large.orders import BACKWARD, FORWARD, ORDERS

Loss = Callable[[Array, int], tuple[float, Array]]
"""(the last stage's result, number of the micro-batch): the loss, and its gradient."""


class Stage(Protocol):
    """A part of the model."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """The result, and what the backward pass of this x needs."""

    def backward(self, dy: Array, kept: Any) -> Array:
        """The gradient of x; those of the weights are added up inside."""


class Pipeline:
    """The stages of `comm`'s ranks, rank 0's first.

    `like`: an array of the shape and dtype of one micro-batch's input to this stage; the first stage needs none.
    `micro`: micro-batches in a step.  `schedule`: "1f1b" or "gpipe".  `most` is how many passes were kept at once.  All
    ranks make it together; ArgumentError and MismatchError name what is wrong, on all of them.
    """

    def __init__(self, stage: Stage, comm: Any, like: Any = None, *, micro: int = 8, schedule: str = "1f1b") -> None:
        self.stage, self.comm, self.like, self.micro, self.schedule = stage, comm, like, micro, schedule
        agree(comm, "Pipeline", self._said)
        self.first, self.last = comm.rank == 0, comm.rank == comm.size - 1
        self.most = 0

    def _said(self) -> dict[str, Any]:
        if whole(self.micro, "micro") < 1:
            raise ArgumentError(f"micro={self.micro} must be at least 1: the micro-batches of a step")
        if self.schedule not in ORDERS:
            raise ArgumentError(f"schedule={self.schedule!r} is unknown; {choices(self.schedule, ORDERS)}")
        if not (hasattr(self.stage, "forward") and hasattr(self.stage, "backward")):
            raise ArgumentError(f"stage={self.stage!r} must have forward(x) and backward(dy, kept)")
        if self.comm.rank and not hasattr(self.like, "shape"):
            raise ArgumentError("like must be an array of the shape of a micro-batch's input to this stage")
        return {"micro": self.micro, "schedule": self.schedule}

    def step(self, batch: Array | None = None, loss: Loss | None = None) -> float | None:
        """Both passes of all micro-batches.  The last stage returns the sum of their losses, the others None.

        `batch`: on the first stage; its rows are cut into micro-batches.  `loss`: on the last one.
        """
        inputs = self._cut(batch) if self.first else None
        if self.last and loss is None:
            raise ArgumentError(f"rank {self.comm.rank}: the last stage needs loss=")
        self._come: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._sent: list[tuple[Any, Array]] = []
        kept: dict[int, tuple[Any, Array | None]] = {}
        total = 0.0
        order = [*ORDERS[self.schedule](self.comm.rank, self.comm.size, self.micro)]
        for m in range(self.micro):
            if not self.first:
                self._post(FORWARD, m, np.empty_like(self.like))
        for way, m in order:
            if way == FORWARD:
                x = inputs[m] if inputs is not None else self._taken(FORWARD, m)
                y, needed = self.stage.forward(x)
                gradient = None
                if self.last and loss is not None:
                    one, gradient = loss(y, m)
                    total += float(one)
                else:
                    self._post(BACKWARD, m, np.empty_like(y))
                    self._send(FORWARD, m, y)
                kept[m] = needed, gradient
                self.most = max(self.most, len(kept))
            else:
                needed, gradient = kept.pop(m)
                dx = self.stage.backward(self._taken(BACKWARD, m) if gradient is None else gradient, needed)
                if not self.first:
                    self._send(BACKWARD, m, dx)
        for work, _ in self._sent:
            work.wait()
        return total if self.last else None

    def _cut(self, batch: Array | None) -> Sequence[Array]:
        if batch is None or len(batch) % self.micro:
            rows = "no batch" if batch is None else f"{len(batch)} rows"
            raise ArgumentError(f"rank {self.comm.rank}: {rows} cannot be cut into {self.micro} micro-batches")
        return np.split(batch, self.micro)

    # --- messages: a tag for each micro-batch and direction

    def _post(self, way: str, m: int, out: Array) -> None:
        peer = self.comm.rank + (-1 if way == FORWARD else 1)
        self._come[way, m] = self.comm.recv(out, peer, _tag(way, m), async_op=True), out

    def _taken(self, way: str, m: int) -> Array:
        work, out = self._come.pop((way, m))
        work.wait()
        return out  # type: ignore[no-any-return]

    def _send(self, way: str, m: int, x: Array) -> None:
        x = np.ascontiguousarray(x)
        peer = self.comm.rank + (1 if way == FORWARD else -1)
        self._sent.append((self.comm.send(x, peer, _tag(way, m), async_op=True), x))


def _tag(way: str, m: int) -> int:
    return 2 * m + (way == BACKWARD)
