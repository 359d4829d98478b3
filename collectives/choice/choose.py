"""Which algorithm for which call, and why: as measured, else as predicted from that, else by the built-in table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hocket.algorithms.language.contract import CONTRACTS
from hocket.collectives.choice import table
from hocket.collectives.choice.fabric import Fabric, candidates
from hocket.collectives.choice.tuning import Tuning

SAME = 1.05
"""Times that differ by no more are the same: a measurement is not better than that."""
SCORES = (
    ("the fastest measured", Tuning.measured),
    ("the fastest predicted; {} was not measured", Tuning.predicted),
)
"""(why, what says how many seconds each algorithm takes), the surest first."""


class Choice(NamedTuple):
    """An algorithm's name, why it was taken, and the seconds a call of it takes (None: unknown)."""

    name: str
    why: str
    seconds: float | None = None


def choose(
    tuning: Tuning, collective: str, nbytes: int, layout: Fabric, commutative: bool = True,
    libraries: Sequence[str] = (),
) -> Choice:  # fmt: skip
    """The best algorithm for a vector of `nbytes`.  All ranks give the same arguments, and get the same answer.

    The fastest wins, unless the built-in table's choice is as good as that, so that noise changes nothing.
    `libraries` (delegates/libraries.py) can carry out this call; one is taken only where it was measured.
    """
    ordered = not commutative and CONTRACTS[collective].reduces
    able = candidates(collective, layout, not ordered, libraries)
    row = table.usual(collective, nbytes, layout, able)
    for why, scores in SCORES:
        seconds = {name: t for name, t in scores(tuning, collective, layout, nbytes).items() if name in able}
        if seconds:
            best = min(seconds, key=seconds.__getitem__)
            best = row.name if seconds.get(row.name, math.inf) <= seconds[best] * SAME else best
            return Choice(best, why.format(layout.text), seconds[best])
    return Choice(row.name, f"the built-in table{', for long links' * layout.long}{row.words}")
