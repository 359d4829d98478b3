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
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.agreeing import agree
from hocket.training.large.experts.exchange import Straight, TwoSteps
from hocket.training.large.experts.routing import Route, balancing, gradient, room, route
from hocket.training.large.stage import Stage
from hocket.training.large.told import tell_all


class Kept(NamedTuple):
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

    def forward(self, x: Array, gates: Array) -> tuple[Array, Kept]:
        """x of (tokens, d), gates of (tokens, experts), not negative: the sum of the chosen experts' results, each
        times its gate (of top 2: its part of both).  A token that is left out gets zeros.

        Ranks may have different numbers of tokens.  ArgumentError, on all ranks, if x or gates are wrong on one.
        """
        routed, sent = self._routed(x, gates)
        one = [1] * self.comm.size
        came = self.exchange(sent, one, one)
        if (came < 0).any():
            agree(self.comm, "Experts", lambda: self._shape(x, gates))
        counts = sent.sum(1).tolist(), came.sum(1).tolist()
        arrived = self.exchange(np.ascontiguousarray(x[routed.tokens]), *counts)
        of = np.repeat(np.tile(np.arange(len(self.experts)), self.comm.size), came.ravel())
        here, results = [], np.empty_like(arrived)
        for number, expert in enumerate(self.experts):
            mine = np.flatnonzero(of == number)
            made, kept = expert.forward(arrived[mine])
            results[mine] = _rows(made, arrived[mine], f"expert {number}'s forward")
            here.append((mine, kept))
        rows = self.exchange(results, *reversed(counts))
        y = np.zeros_like(x)
        np.add.at(y, routed.tokens, routed.weights[:, None] * rows)
        self.dropped = routed.dropped
        return y, Kept(routed, rows, counts, here, gates.shape)

    def backward(self, dy: Array, kept: Kept) -> tuple[Array, Array]:
        """The gradients of x and of the gates; those of the experts' weights are added up inside them."""
        routed = kept.route
        arrived = self.exchange(np.ascontiguousarray(routed.weights[:, None] * dy[routed.tokens]), *kept.counts)
        gradients = np.empty_like(arrived)
        for number, (expert, (mine, needed)) in enumerate(zip(self.experts, kept.here, strict=True)):
            made = expert.backward(arrived[mine], needed)
            gradients[mine] = _rows(made, arrived[mine], f"expert {number}'s backward")
        dx = np.zeros_like(dy)
        np.add.at(dx, routed.tokens, self.exchange(gradients, *reversed(kept.counts)))
        return dx, gradient(routed, (dy[routed.tokens] * kept.rows).sum(1), kept.shape)

    def balancing(self, gates: Array, scale: float = 0.01) -> tuple[float, Array]:
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
        return routed, np.bincount(routed.experts, minlength=self.count).reshape(self.comm.size, -1)

    def _shape(self, x: Array, gates: Array) -> dict[str, Any]:
        for name, array in (("x", x), ("gates", gates)):
            if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fV":  # V: bfloat16
                got = f"{array.dtype}{array.shape}" if isinstance(array, np.ndarray) else kind(array)
                raise ArgumentError(f"{name} must be an array of floats, a row for each token; got {got}")
        if gates.shape != (len(x), self.count):
            raise ArgumentError(f"gates have shape {gates.shape}, not {(len(x), self.count)}: tokens, experts")
        return {}


def _rows(made: Any, given: Array, what: str) -> Any:
    """An expert's output, which must have as many rows, as wide."""
    if np.shape(made) != given.shape:
        raise ArgumentError(f"{what} was given rows of shape {given.shape}, and returned {np.shape(made)}: they differ")
    return made
