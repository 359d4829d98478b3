"""NoLoCo: in each round ranks meet in pairs, drawn from the round's number, and no collective is made.

    D = mean (phi - theta) - (mean phi - phi_i) of the pair;  m = momentum m + D;  phi -= lr m;  theta = phi

so the pair's phi come nearer to each other.  Law: the mean of a pair's phi moves by its mean D and m alone.  Ranks hold
different parameters; average them at the end.  Traffic: 2n to one rank in a round, whatever the number of ranks, and
nobody waits for more than one.  With an odd number of ranks one is alone.

Source: Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models" (arXiv
2506.10911); lr 0.7 and momentum 0.5 as its authors' code (github.com/gensyn-ai/noloco).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.compression.memory import alike, namespace
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.outer.outer import Outer
from hocket.training.outer.rounds import Flight
from hocket.training.outer.rules import Momentum

TAG = 0x6E6C  # of its messages


class NoLoCo(Outer):
    """Pairs of ranks.  `seed`: of the pairs, the same on all ranks.  More arguments: those of `Outer`, but send."""

    kind = "noloco/1"
    replicated = False

    def __init__(
        self, members: Any, parameters: Any, *, every: int = 50, lr: float = 0.7, momentum: float = 0.5, seed: int = 0,
        **more: Any,
    ) -> None:  # fmt: skip
        if more.get("send") is not None:
            raise ArgumentError("NoLoCo sends floats: pass send=None")
        self.seed = seed
        super().__init__(members, parameters, rule=Momentum(lr, momentum), every=every, **more)

    def partner(self, comm: Any, number: int) -> int:
        """This rank's in round `number`; itself: it is alone."""
        order = np.random.default_rng([self.seed, number]).permutation(comm.size).tolist()
        at = order.index(comm.rank) ^ 1
        return int(order[at]) if at < comm.size else int(comm.rank)

    def _members(self, comm: Any) -> tuple[Any, ...]:
        names = super()._members(comm)
        return tuple(names[r] for r in sorted({comm.rank, self.partner(comm, self.rounds + 1)}))

    def _rows(self, comm: Any, flight: Flight, row: Array) -> Array:
        other = self.partner(comm, flight.number)
        return row if other == comm.rank else namespace(row).concatenate(sorted_by_rank(comm, other, row))

    def _average(self, comm: Any, flight: Flight, fresh: bool) -> int:
        other, phi = self.partner(comm, flight.number), self.phi[flight.fragment.span]
        if other == comm.rank:
            return 0
        xp, count = namespace(phi), len(phi)
        mine = xp.concatenate([flight.gradient, phi])
        first, second = sorted_by_rank(comm, other, mine)
        mean = (first + second) * 0.5  # the same bits on both
        xp.subtract(mean[:count], mean[count:] - phi, out=flight.gradient)
        return int(mine.nbytes)


def sorted_by_rank(comm: Any, other: int, mine: Array) -> list[Array]:
    """This rank's array and the other's, exchanged, the lower rank's first."""
    theirs = alike(mine, mine.shape)
    comm.sendrecv(mine, other, theirs, other, TAG)
    return [mine, theirs] if comm.rank < other else [theirs, mine]
