"""Which algorithm for which call, and why: as measured, else as predicted from that, else by the built-in table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hocket.algorithms.choice.table import select
from hocket.algorithms.choice.tuning import Layout, Tuning, candidates
from hocket.algorithms.language.contract import CONTRACTS

SAME = 1.05
"""Times that differ by no more are the same: a measurement is not better than that."""


class Choice(NamedTuple):
    """An algorithm's name, why it was taken, and the seconds a call of it takes (None: nobody knows)."""

    name: str
    why: str
    measured: float | None = None
    predicted: float | None = None


def choose(
    tuning: Tuning, collective: str, nbytes: int, layout: Layout, groups: Sequence[Sequence[int]],
    commutative: bool = True, libraries: Sequence[str] = (),
) -> Choice:  # fmt: skip
    """The best algorithm for a vector of `nbytes`.  All ranks give the same arguments, and get the same answer.

    `libraries`: those of delegated.py that can carry out this call; one is taken only where it was measured.
    """
    ordered = not commutative and CONTRACTS[collective].reduces
    able = candidates(collective, layout, not ordered, libraries)
    times = {name: t for name, t in tuning.measured(collective, layout, nbytes).items() if name in able}
    if times:
        best = _best(times, collective, layout, nbytes, groups, commutative)
        return Choice(best, "the fastest measured", times[best], tuning.predicted(collective, best, layout, nbytes))
    guesses = {name: tuning.predicted(collective, name, layout, nbytes) for name in able}
    sure = {name: t for name, t in guesses.items() if t is not None}
    if sure:
        best = _best(sure, collective, layout, nbytes, groups, commutative)
        return Choice(best, f"the fastest predicted; {layout.text} was not measured", None, sure[best])
    return Choice(select(collective, layout.size, nbytes, groups, commutative, layout.inside), "the built-in table")


def _best(
    times: Mapping[str, float], collective: str, layout: Layout, nbytes: int, groups: Sequence[Sequence[int]],
    commutative: bool,
) -> str:  # fmt: skip
    """The fastest; but the built-in table's choice if it is as good as that, so that noise changes nothing."""
    usual = select(collective, layout.size, nbytes, groups, commutative, layout.inside)
    best = min(times, key=times.__getitem__)
    return usual if times.get(usual, math.inf) <= times[best] * SAME else best
