"""Which algorithms can keep what encodings lose.

With a codec a rank encodes what it brings, and each sum that it makes on the way.  Of each element it keeps one loss of
the first kind and one of the second.  So it may encode one sum of an element and no more; and a sum that several ranks
encode is lost once, and would be kept several times.  Recursive doubling does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.proof.walk import Value, start, walk

ENOUGH = 16
"""Checking this many ranks suffices: from 3 on hocket's own algorithms answer alike (its tests say so)."""


def keeps_residuals(algorithm: Algorithm, size: int) -> bool:
    """Does each rank encode at most one sum of an element, which no other rank encodes?

    All ranks are walked once.  A user's algorithm, and a hierarchical one, is walked at its full size: a ring of 64
    ranks takes 0.2 s.
    """
    alike = algorithm.own and size > ENOUGH and algorithm.requires(ENOUGH) is None
    return _walked(algorithm, ENOUGH if alike else size)


@lru_cache(maxsize=256)
def _walked(algorithm: Algorithm, size: int) -> bool:
    contract, sums = CONTRACTS[algorithm.collective], _Sums(algorithm.far(size) if algorithm.far is not None else 0)
    if algorithm.scratch and contract.reduces:  # a sum there is of no element that the caller has
        return False
    held = start(contract, size, 0, algorithm.chunks(size))
    for _ in walk([list(algorithm.steps(rank, size, 0)) for rank in range(size)], held, sums):
        pass
    by_rank = {(rank, chunk) for _, chunk, rank in sums.encoded}
    by_value = {(value, chunk) for value, chunk, _ in sums.encoded}
    return len(by_rank) == len(by_value) == len(sums.encoded)


class _Sums:
    """Notes the sums that are encoded in a walk."""

    def __init__(self, far: int) -> None:
        self.far = far
        self.encoded: list[tuple[int, int, int]] = []
        """(the sum, its chunk, the rank)"""

    def begin(self, t: int, held: list[dict[int, Value]]) -> None:
        """Do nothing: a rank's own input is encoded once."""

    def rounded(self, total: Value, terms: Sequence[Value], rank: int, t: int) -> Value:
        if t >= self.far and len(terms) > 1:
            self.encoded.append((total.made, total.chunk, rank))
        return total
