"""`Experts`: a layer of experts that are dealt to the ranks; each token travels to those that its gate has chosen.

    rows to the experts' ranks (exchange.py), the experts, and back the same way; the gradients take it once more

Law: the result and all gradients are those of one process that has all experts, to 1e-6; with a capacity, of one that
leaves out the same tokens (routing.py).  Bytes that a rank sends, each way: its rows that other ranks' experts take,
times d.  The capacity is that of a rank's tokens: GShard's groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.arguments import kind, whole
from hocket.compression.memory import alike, contiguous, dtype_of, is_array, moved
from hocket.errors import ArgumentError
from hocket.extending import gpu_of, place, uncaptured
from hocket.training.flat import Array
from hocket.training.large.agreeing import agree
from hocket.training.large.experts.exchange import Straight, TwoSteps
from hocket.training.large.experts.routing import Route, added, balancing, gradient, room, route
from hocket.training.large.stage import Stage
from hocket.training.large.told import tell_all


class SavedForward(NamedTuple):
    """The parts of `forward` that `backward` needs."""

    route: Route
    rows: Array
    """The experts' output for each row."""
    counts: tuple[list[int], list[int]]
    """Rows that this rank has sent to each rank, and got from each."""
    here: list[tuple[Array, Any]]
    """Parts of each expert of this rank: which of the rows that came are its, and what it has kept."""
    shape: tuple[int, int]
    """The shape of the gates."""


class Experts:
    """The experts of this rank, as many as on each other: objects with `forward` and `backward`, as a `Stage` has them.

    `top`: experts of a token, 1 or 2.  `capacity`: an expert takes at most capacity * top * tokens / experts of a
    rank's tokens, the first ones; None: all.  `dropped`: how many of the last call's rows were left out.
    `hierarchical`: rows travel in two steps, inside hosts and between them.  All ranks make it together; ArgumentError
    and MismatchError name what is wrong, on all of them.
    """

    def __init__(
        self, comm: Any, experts: Sequence[Stage], *, top: int = 1, capacity: float | None = 1.25,
        hierarchical: bool = False,
    ) -> None:  # fmt: skip
        self.comm, self.experts, self.top, self.capacity = comm, [*experts], top, capacity
        agree(comm, "Experts", lambda: {**self._said(), "hierarchical": bool(hierarchical)})
        self.exchange = TwoSteps(comm) if hierarchical else Straight(comm)
        self.count = len(self.experts) * comm.size
        tell_all(self.experts, comm)
        self.dropped = 0

    def _said(self) -> dict[str, Any]:
        if whole(self.top, "top") not in (1, 2):
            raise ArgumentError(f"top={self.top} must be 1 or 2: the experts of a token")
        if self.capacity is not None and not 0 < self.capacity < math.inf:
            raise ArgumentError(f"capacity={self.capacity!r} must be a number above 0, or None: no limit")
        if not self.experts or self.top > len(self.experts) * self.comm.size:
            raise ArgumentError(f"{len(self.experts)} experts on each rank are too few for top={self.top}")
        return {"number of experts": len(self.experts), "top": self.top, "capacity": self.capacity}

    def forward(self, x: Array, gates: Array) -> tuple[Array, SavedForward]:
        """x of (tokens, d), gates of (tokens, experts), not negative: the sum of the chosen experts' results, each
        times its gate (of top 2: its part of both).  A token that is left out gets zeros.

        Ranks may have different numbers of tokens.  ArgumentError, on all ranks, if x or gates are wrong on one.
        """
        uncaptured(gates, "Experts")
        routed, sent = self._routed(x, gates)
        one = [1] * self.comm.size
        came = self.exchange(sent, one, one)
        if (came < 0).any():
            agree(self.comm, "Experts", lambda: self._shape(x, gates))
        counts = sent.sum(1).tolist(), came.sum(1).tolist()
        arrived = self.exchange(contiguous(x[routed.tokens]), *counts)
        of = np.repeat(np.tile(np.arange(len(self.experts)), self.comm.size), came.ravel())
        here, results = [], alike(arrived, arrived.shape)
        for number, expert in enumerate(self.experts):
            mine = moved(np.flatnonzero(of == number), arrived)
            made, kept = expert.forward(arrived[mine])
            results[mine] = _rows(made, arrived[mine], f"expert {number}'s forward")
            here.append((mine, kept))
        rows = self.exchange(results, *reversed(counts))
        y = added(routed, routed.weights[:, None] * rows, alike(x, x.shape))
        self.dropped = routed.dropped
        return y, SavedForward(routed, rows, counts, here, gates.shape)

    def backward(self, dy: Array, kept: SavedForward) -> tuple[Array, Array]:
        """The gradients of x and of the gates; those of the experts' weights are added up inside them."""
        routed = kept.route
        arrived = self.exchange(contiguous(routed.weights[:, None] * dy[routed.tokens]), *kept.counts)
        gradients = alike(arrived, arrived.shape)
        for number, (expert, (mine, needed)) in enumerate(zip(self.experts, kept.here, strict=True)):
            made = expert.backward(arrived[mine], needed)
            gradients[mine] = _rows(made, arrived[mine], f"expert {number}'s backward")
        dx = added(routed, self.exchange(gradients, *reversed(kept.counts)), alike(dy, dy.shape))
        return dx, gradient(routed, (dy[routed.tokens] * kept.rows).sum(1), kept.shape)

    def balancing(self, gates: Array, scale: float = 0.01) -> tuple[Any, Array]:
        """The loss that balances the experts (routing.py), of gates of (tokens, experts), and its gradient, which is to
        be added to that of `backward`.  No message.
        """
        return balancing(gates, scale)

    def _routed(self, x: Array, gates: Array) -> tuple[Any, Array]:
        """Where rows go, and how many to each expert of each rank; -1, which all ranks see, if gates are wrong."""
        try:
            self._shape(x, gates)
        except ArgumentError:
            return None, np.full((self.comm.size, len(self.experts)), -1)
        routed = route(gates, self.top, room(self.capacity, self.top, len(x), self.count))
        return routed, routed.counts.reshape(self.comm.size, -1)

    def _shape(self, x: Array, gates: Array) -> dict[str, Any]:
        for name, array in (("x", x), ("gates", gates)):
            if not is_array(array) or array.ndim != 2 or "float" not in dtype_of(array):
                got = f"{array.dtype}{tuple(array.shape)}" if is_array(array) else kind(array)
                raise ArgumentError(f"{name} must be an array of floats, a row for each token; got {got}")
        if tuple(gates.shape) != (len(x), self.count):
            raise ArgumentError(f"gates have shape {tuple(gates.shape)}, not {(len(x), self.count)}: tokens, experts")
        if gpu_of(gates) != gpu_of(x):
            raise ArgumentError(f"gates lie {place(gates)}, x {place(x)}: give both in one place")
        return {}


def _rows(made: Any, given: Array, what: str) -> Any:
    """An expert's output, which must have as many rows, as wide."""
    shape = tuple(getattr(made, "shape", None) or np.shape(made))
    if shape != tuple(given.shape):
        raise ArgumentError(f"{what} was given rows of shape {tuple(given.shape)}, and returned {shape}: they differ")
    return made
