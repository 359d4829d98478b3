"""`Experts`: a layer of experts that are dealt to the ranks; each token travels to those that its gate has chosen.

    rows to the experts' ranks (alltoallv), the experts, and back the same way; the gradients take it once more

Law: the result and all gradients are those of one process that has all experts, to 1e-6; with a capacity, of one that
leaves out the same tokens.  Bytes that a rank sends, each way: its rows that other ranks' experts take, times d.

Sources: Lepikhin et al., "GShard", ICLR 2021 (top 2, capacity in groups: a group is a rank's tokens); Fedus et al.,
"Switch transformers", JMLR 2022 (top 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.arguments import whole
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.agreeing import agree
from hocket.training.large.stage import Stage


class Kept(NamedTuple):
    """What `backward` needs of `forward`."""

    tokens: Array
    """Of each row that was sent, in the order of experts: its token, ..."""
    experts: Array
    """... its expert, ..."""
    weights: Array
    """... what it counts, ..."""
    rows: Array
    """... and what its expert has made of it."""
    chosen: Array
    """The experts of each token, (tokens, top), and ..."""
    total: Array
    """... the sum of their gates, by which weights were divided; of top 1 ones."""
    counts: tuple[list[int], list[int]]
    """Rows that this rank has sent to each rank, and got from each."""
    here: list[tuple[Array, Any]]
    """Of each expert of this rank: which of the rows that came are its, and what it has kept."""
    shape: tuple[int, int]
    """Of the gates."""


class Experts:
    """The experts of this rank, as many as on each other: objects with `forward` and `backward`, as a `Stage` has them.

    `top`: experts of a token, 1 or 2.  `capacity`: an expert takes at most capacity * top * tokens / experts of a
    rank's tokens, the first ones; None: all.  `dropped`: how many of the last call's rows were left out.  All ranks
    make it together; ArgumentError and MismatchError name what is wrong, on all of them.
    """

    def __init__(self, comm: Any, experts: Sequence[Stage], *, top: int = 1, capacity: float | None = 1.25) -> None:
        self.comm, self.experts, self.top, self.capacity = comm, [*experts], top, capacity
        agree(comm, "Experts", self._said)
        self.count = len(self.experts) * comm.size
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
        times its gate (of top 2: its part of both).  A token that is left out gets zeros."""
        if gates.shape != (len(x), self.count):
            raise ArgumentError(f"gates have shape {gates.shape}, not {(len(x), self.count)}: tokens, experts")
        chosen = np.argsort(-gates, 1, kind="stable")[:, : self.top]
        weights = np.take_along_axis(gates, chosen, 1)
        total = weights.sum(1, keepdims=True) if self.top > 1 else np.ones_like(weights)
        tokens, experts, weights = self._placed(chosen, weights / total)
        there = np.bincount(experts, minlength=self.count).reshape(self.comm.size, -1)
        came = self.comm.alltoall(there)
        counts = there.sum(1).tolist(), came.sum(1).tolist()
        arrived = self.comm.alltoallv(np.ascontiguousarray(x[tokens]), *counts)
        of = np.repeat(np.tile(np.arange(len(self.experts)), self.comm.size), came.ravel())
        here, made = [], np.empty_like(arrived)
        for number, expert in enumerate(self.experts):
            mine = np.flatnonzero(of == number)
            made[mine], kept = expert.forward(arrived[mine])
            here.append((mine, kept))
        rows = self.comm.alltoallv(made, *reversed(counts))
        y = np.zeros_like(x)
        np.add.at(y, tokens, weights[:, None] * rows)
        return y, Kept(tokens, experts, weights, rows, chosen, total, counts, here, gates.shape)

    def backward(self, dy: Array, kept: Kept) -> tuple[Array, Array]:
        """The gradients of x and of the gates; those of the experts' weights are added up inside them."""
        back = np.ascontiguousarray(kept.weights[:, None] * dy[kept.tokens])
        arrived = self.comm.alltoallv(back, *kept.counts)
        made = np.empty_like(arrived)
        for expert, (mine, needed) in zip(self.experts, kept.here, strict=True):
            made[mine] = expert.backward(arrived[mine], needed)
        dx, dgates = np.zeros_like(dy), np.zeros(kept.shape, dy.dtype)
        np.add.at(dx, kept.tokens, self.comm.alltoallv(made, *reversed(kept.counts)))
        dgates[kept.tokens, kept.experts] = (dy[kept.tokens] * kept.rows).sum(1)
        if self.top > 1:
            shares = np.zeros_like(dgates)
            shares[kept.tokens, kept.experts] = kept.weights
            both = np.zeros_like(dgates)
            np.put_along_axis(both, kept.chosen, 1, 1)
            dgates = both * (dgates - (shares * dgates).sum(1, keepdims=True)) / kept.total
        return dx, dgates

    def _placed(self, chosen: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Token, expert and weight of each row to be sent, in the order of experts, without those left out."""
        tokens = np.repeat(np.arange(len(chosen)), self.top)
        experts, order = chosen.ravel(), np.argsort(chosen.ravel(), kind="stable")
        if self.capacity is not None:
            most = math.ceil(self.capacity * self.top * len(chosen) / self.count)
            counts = np.bincount(experts, minlength=self.count)
            place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
            order = order[place < most]
        self.dropped = len(tokens) - len(order)
        return tokens[order], experts[order], weights.ravel()[order]
