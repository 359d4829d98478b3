"""Measured points, and what follows from them for sizes and layouts that were not measured.

A point says how long each algorithm of a collective took at one size on one layout (how many ranks on how many hosts,
over which transports).  Between points times are interpolated, on logarithmic scales; for other layouts they are
predicted (model.py).  A `Tuning` never changes and compares no clocks: ranks that hold the same one choose the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from hocket.algorithms.language.registry import names
from hocket.algorithms.prediction.model import PRICES, counts, fit, price
from hocket.arguments import human
from hocket.collectives.choice.fabric import Fabric, candidates, known
from hocket.errors import ArgumentError

FORMAT = 2
"""The format of the text; `read` refuses any other."""
MOST_RANKS = 64
"""Beyond so many ranks nothing is predicted: to count what each of them does takes longer than a user would wait."""
SLOTS_ARE_SLOW = 1 << 20
"""Bytes: a rule that reads shorter messages, as on Intel's CPUs, was made where slots are slow."""
FEWEST = 12
"""Measured times to fit prices to, at the least."""


class Reads(NamedTuple):
    """From how many bytes on a rank of the same host reads a message in the sender's memory; None: it never does.

    Otherwise messages go through slots of shared memory.
    """

    moved: int | None
    """Bytes of a block that is only moved."""
    reduced: int | None
    tried_moved: int | None = None
    """Bytes from which on such a block goes the way that was found the fastest (plans/weigh.h); None: as above."""
    tried_reduced: int | None = None
    """The same of a vector that is reduced, all its bytes."""
    tried_one_way: int | None = None
    """The same of what some ranks send and others receive; shorter messages go by slots."""

    def tried(self, traffic: str) -> int | None:
        """Bytes from which on ways are tried for a contract's traffic."""
        return {"moved": self.tried_moved, "reduced": self.tried_reduced, "one way": self.tried_one_way}[traffic]

    @property
    def slots_are_slow(self) -> bool:
        """Was the rule made where a system call beats slots for short messages, too?"""
        return self.moved is not None and self.moved < SLOTS_ARE_SLOW

    @property
    def words(self) -> str:
        """The rule in a sentence, for `explain` and `hocket tune`."""
        moved, reduced = ("never" if n is None else f"from {human(n)} on" for n in self[:2])
        either = ["" if n is None else f" (or whichever way is faster, from {human(n)} on)" for n in self[2:]]
        words = f"ranks read messages in the sender's memory {moved}{either[0]}, what they reduce {reduced}{either[1]}"
        return words + (either[2] and f", what goes one way never{either[2]}")


class Point(NamedTuple):
    """Seconds of one call, by algorithm."""

    collective: str
    layout: Fabric
    nbytes: int
    """Bytes of a rank's whole vector, all blocks together."""
    seconds: Mapping[str, float]


class Tuning:
    """Points, of a machine whose ranks share `cores` on each host, and the prices (model.py) that fit them."""

    def __init__(
        self, points: Iterable[Point] = (), cores: int = 1, prices: Mapping[str, tuple[float, ...]] | None = None,
        reads: Reads | None = None,
    ) -> None:  # fmt: skip
        """`prices`: by transports, and "any" for transports that were not measured together; None: fitted here.

        `reads`: where it was measured.
        """
        self.reads = reads
        self.points, self.cores = tuple(sorted(points, key=lambda p: (p.collective, p.layout, p.nbytes))), cores
        self.prices = self._fitted() if prices is None else dict(prices)

    def __add__(self, newer: Tuning) -> Tuning:
        """The points of both; for the same collective and layout only the newer ones."""
        again = {(p.collective, p.layout) for p in newer.points}
        kept = [p for p in self.points if (p.collective, p.layout) not in again]
        return Tuning([*kept, *newer.points], newer.cores, reads=newer.reads or self.reads)

    def measured(self, collective: str, layout: Fabric, nbytes: int) -> dict[str, float]:
        """Seconds by algorithm, from the points beside `nbytes`; {} if this layout was not measured.

        Below the smallest point time stands still, above the largest it grows with the bytes.
        """
        points = self._of.get((collective, layout), [])
        if not points:
            return {}
        above = next((i for i, p in enumerate(points) if p.nbytes >= nbytes), len(points))
        if above == 0:
            return dict(points[0].seconds)
        low = points[above - 1]
        if above == len(points):
            return {name: t * nbytes / low.nbytes for name, t in low.seconds.items()}
        high = points[above]
        share = math.log(nbytes / low.nbytes) / math.log(high.nbytes / low.nbytes)
        both = [name for name in low.seconds if name in high.seconds]
        return {name: low.seconds[name] ** (1 - share) * high.seconds[name] ** share for name in both}

    def predicted(self, collective: str, layout: Fabric, nbytes: int) -> dict[str, float]:
        """Seconds by algorithm, from the model; {} if ranks are many or these transports were measured too little."""
        prices = self.prices.get(layout.transports) or self.prices.get("any")
        measured = {"", *(transport for p in self.points for transport in (p.layout.inside, p.layout.across))}
        if prices is None or not {layout.inside, layout.across} <= measured or layout.size > MOST_RANKS:
            return {}
        return {
            name: price(prices, counts(algorithm, layout.ranks, self.cores, nbytes, layout.segment, layout.apart))
            for name, algorithm in candidates(collective, layout).items()
        }

    @cached_property
    def _of(self) -> dict[tuple[str, Fabric], list[Point]]:
        grouped: dict[tuple[str, Fabric], list[Point]] = {}
        for p in self.points:
            grouped.setdefault((p.collective, p.layout), []).append(p)
        return grouped

    def _fitted(self) -> dict[str, tuple[float, ...]]:
        rows: dict[str, list[tuple[tuple[float, ...], float]]] = {}
        for p in (each for each in self.points if each.layout.size <= MOST_RANKS):
            for name, seconds in p.seconds.items():
                algorithm = known(p.collective, name, p.layout)
                if algorithm is not None:
                    counted = counts(algorithm, p.layout.ranks, self.cores, p.nbytes, p.layout.segment, p.layout.apart)
                    for transports in (p.layout.transports, "any"):
                        rows.setdefault(transports, []).append((counted, seconds))
        return {transports: fit(each) for transports, each in rows.items() if len(each) >= FEWEST}

    def text(self) -> str:
        """For a file or a message; `read` reads it."""
        points = [[p.collective, list(p.layout), p.nbytes, {n: float(f"{t:.4g}") for n, t in p.seconds.items()}]
                  for p in self.points]  # fmt: skip
        prices = {transports: [float(f"{x:.4g}") for x in each] for transports, each in self.prices.items()}
        content = {"format": FORMAT, "cores": self.cores, "reads": self.reads, "prices": prices, "points": points}
        return json.dumps(content)

    @classmethod
    def read(cls, text: str) -> Tuning:
        """The Tuning that wrote `text`.  ArgumentError for anything else."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise ValueError(f"it has format {content['format']!r}, not {FORMAT}")
            prices = {str(transports): _prices(each) for transports, each in content["prices"].items()}
            points, reads = [_point(*each) for each in content["points"]], content.get("reads")
            return cls(points, _positive(content["cores"]), prices, reads and Reads(*map(_from, reads)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
            what = f"{type(why).__name__}: {why}"
            raise ArgumentError(
                f"this is not a file of `hocket tune` ({what}); measure again with `hocket tune`"
            ) from None


def _point(collective: str, layout: Sequence[Any], nbytes: int, seconds: Mapping[str, float]) -> Point:
    names(collective)  # refuses an unknown one
    groups, inside, across, segment = layout
    where = Fabric(tuple(_positive(n) for n in groups), str(inside), str(across), _positive(segment))
    return Point(collective, where, _positive(nbytes), {str(n): _seconds(t) for n, t in seconds.items()})


def _positive(value: Any) -> int:
    if not isinstance(value, int) or not 0 < value < 1 << 63:
        raise ValueError(f"{value!r} is not a count")
    return value


def _from(value: Any) -> int | None:
    return None if value is None else _positive(value)


def _prices(values: Sequence[Any]) -> tuple[float, ...]:
    if len(values) != len(PRICES):
        raise ValueError(f"there are {len(PRICES)} prices, not {len(values)}")
    return tuple(_seconds(x) if x else 0.0 for x in values)


def _seconds(value: Any) -> float:
    if not isinstance(value, float | int) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is not a time")
    return float(value)
