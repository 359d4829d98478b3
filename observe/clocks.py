"""The offset between two clocks, and a bound on its error that no network delay can break.

A ping is four times: the client sends at t1 and hears back at t4 (on its own clock), the reference receives at t2 and
answers at t3 (on the reference's).  No message arrives before it was sent, so for offset(t) = reference - client

    t3 - t4  <=  offset  <=  t2 - t1

A clock that drifts evenly is a line, offset(t) = a + b (t - t0).  Each ping gives it two gates to go through; all
lines through all gates are the answer.  At time t the middle between the lowest and the highest of them is the
estimate, and half of what lies between them the bound.  Nothing is assumed about delays: slow pings merely give wide
gates.  (NTP takes the middle of the narrowest gate; Huygens, NSDI 2018, one line, by a support vector machine.)

Where no line fits, the clock was stepped or slewed: it is then fitted piece by piece, and `Clock.breaks` says where.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hocket.errors import ArgumentError

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]
FASTEST = 200e-6
"""No clock drifts faster against another: crystals are good for 100 ppm each.  Without a limit one burst of pings would
say nothing about later times."""
SLACK = 1.0
"""ns: times are whole nanoseconds."""


class Ping(NamedTuple):
    """t1 and t4: the client's clock; t2 and t3: the reference's.  ns."""

    t1: int
    t2: int
    t3: int
    t4: int


class Gate(NamedTuple):
    """At the client's time `t` the offset is at most `value` (`above`), or at least.  ns."""

    t: int
    value: int
    above: bool


def gates(pings: Iterable[Ping]) -> list[Gate]:
    """A ping binds the offset from above when it was sent, and from below when its answer came.

    A ping during which a clock was stepped back, so that it took less than no time, says nothing and is left out.
    """
    sound = [p for p in pings if p.t4 - p.t1 >= p.t3 - p.t2]
    return [gate for p in sound for gate in (Gate(p.t1, p.t2 - p.t1, True), Gate(p.t4, p.t3 - p.t4, False))]


@dataclass(frozen=True)
class OffsetBand:
    """All lines through some gates: at time t the offset is between `low` and `high`."""

    first: int
    last: int
    """From here to there gates bind it from both sides."""
    origin: int
    """Times count from here."""
    base: int
    """ns, to be added to what the lines say: offsets of days keep their nanoseconds."""
    corners: tuple[tuple[float, float], ...]
    """(a, b) of the extreme lines, a + b (t - origin)."""

    def bounds(self, t: Times) -> tuple[Floats, Floats]:
        """The lowest and the highest offset, less `base`, at these times."""
        since, (a, b) = t - self.origin, self.corners[0]
        low = high = a + b * since
        for a, b in self.corners[1:]:
            at = a + b * since
            low, high = np.minimum(low, at), np.maximum(high, at)
        return low, high

    @property
    def drift(self) -> tuple[float, float]:
        """The slowest and the fastest possible, in parts per million."""
        return min(b for _, b in self.corners) * 1e6, max(b for _, b in self.corners) * 1e6


def line(given: Sequence[Gate], fastest: float = FASTEST) -> OffsetBand | None:
    """All lines through these gates, whose drift is at most `fastest`; None if no line goes through all.

    Each gate is a half plane of (a, b).  The corners of what they have in common are the extreme lines: two constraints
    hold there with equality.  Cost: the cube of the corners of the gates' two hulls, some 20 each.
    """
    origin, base = given[0].t, given[0].value
    highs = _hull([(float(g.t - origin), float(g.value - base)) for g in given if g.above], lower=True)
    lows = _hull([(float(g.t - origin), float(g.value - base)) for g in given if not g.above], lower=False)
    points = np.array(highs + lows)
    t, y = points[:, 0], points[:, 1]
    b = np.concatenate([np.full(len(t), -fastest), np.full(len(t), fastest)])
    a = np.concatenate([y, y]) - b * np.concatenate([t, t])
    i, j = np.triu_indices(len(t), 1)
    i, j = i[t[i] != t[j]], j[t[i] != t[j]]
    slope = (y[j] - y[i]) / (t[j] - t[i])
    a, b = np.concatenate([a, y[i] - slope * t[i]]), np.concatenate([b, slope])
    at = a[:, None] + b[:, None] * t
    above, below = at[:, : len(highs)] <= y[: len(highs)] + SLACK, at[:, len(highs) :] >= y[len(highs) :] - SLACK
    kept = (np.abs(b) <= fastest) & above.all(axis=1) & below.all(axis=1)
    if not kept.any():
        return None
    corners = tuple(zip(a[kept].tolist(), b[kept].tolist(), strict=True))
    kinds = [[g.t for g in given if g.above is above] for above in (True, False)]
    return OffsetBand(max(map(min, kinds)), min(map(max, kinds)), origin, base, corners)


def _hull(points: list[tuple[float, float]], lower: bool) -> list[tuple[float, float]]:
    """The points that a line below (`lower`) or above all of them can touch."""
    sign, kept = (1 if lower else -1), list[tuple[float, float]]()
    for x, y in sorted(points):
        while len(kept) > 1 and sign * _turn(kept[-2], kept[-1], (x, y)) <= 0:
            kept.pop()
        kept.append((x, y))
    return kept


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    """More than 0: from a over b to c goes to the left."""
    return (b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0])


class Break(NamedTuple):
    """Between two times of the client's clock it was stepped or slewed by `ns`, give or take `error`."""

    after: int
    before: int
    ns: float
    error: float


class Clock:
    """One rank's clock against the reference: what to add to its times, and by how much that may be wrong."""

    def __init__(self, pieces: Sequence[OffsetBand], until: int = 1 << 62) -> None:
        self.pieces = tuple(pieces)
        self.until = until
        """From here on the gates contradict the last piece, and are too few for another: the error is infinite."""

    @classmethod
    def same(cls) -> Clock:
        """The clock is the reference itself: offset 0, error 0."""
        return cls([OffsetBand(0, 0, 0, 0, ((0.0, 0.0),))])

    @classmethod
    def unknown(cls, offset: int) -> Clock:
        """Only a guess is known: offset so and so, error infinite."""
        return cls([OffsetBand(0, 0, 0, offset, ((0.0, 0.0),))], until=-(1 << 62))

    @classmethod
    def fit(cls, given: Iterable[Gate], fastest: float = FASTEST) -> Clock:
        """One line, or as few as go through all gates.  Raises ArgumentError if they bind nothing from both sides."""
        left, pieces = sorted(given), list[OffsetBand]()
        while left:
            count, piece = _longest(left, fastest)
            if piece is None:
                break
            pieces.append(piece)
            left = left[count:]
        if not pieces:
            raise ArgumentError("these times say nothing about the clocks: expected messages in both directions")
        return cls(pieces, left[0].t if left else 1 << 62)

    def offset(self, t: int) -> int:
        """ns to add to the client's time `t`."""
        return int(self._estimate(np.array([t]))[0][0])

    def error(self, t: int) -> float:
        """ns: `offset(t)` is wrong by no more."""
        return float(self._estimate(np.array([t]))[1][0])

    def align(self, times: Times) -> Times:
        """The client's times, int64, on the reference's clock.  Cost: two passes over the array for each corner."""
        aligned: Times = times + self._estimate(times)[0]
        return aligned

    def _estimate(self, times: Times) -> tuple[Times, Floats]:
        """Offsets and errors.  Between two pieces whatever either says, as the step may have been at any time."""
        edges = np.array([piece.last for piece in self.pieces[:-1]], np.int64)
        which = np.searchsorted(edges, times)
        offsets, errors = np.empty_like(times), np.empty(len(times))
        for i, piece in enumerate(self.pieces):
            mine = which == i
            t = times[mine]
            low, high = piece.bounds(t)
            if i:
                before = self.pieces[i - 1]
                gap = t < piece.first
                lower, upper = (each + (before.base - piece.base) for each in before.bounds(t))
                low, high = np.where(gap, np.minimum(low, lower), low), np.where(gap, np.maximum(high, upper), high)
            offsets[mine] = piece.base + np.rint((low + high) / 2).astype(np.int64)
            errors[mine] = np.where(t < self.until, (high - low) / 2, math.inf)
        return offsets, errors

    @property
    def drift(self) -> tuple[float, float]:
        """The slowest and the fastest possible of any piece, in parts per million."""
        return min(piece.drift[0] for piece in self.pieces), max(piece.drift[1] for piece in self.pieces)

    @property
    def breaks(self) -> list[Break]:
        """Where no line fitted."""
        breaks = []
        for one, two in zip(self.pieces, self.pieces[1:], strict=False):
            middle = np.array([(one.last + two.first) // 2])
            ((a,), (b,)), ((c,), (d,)) = one.bounds(middle), two.bounds(middle)
            jump = two.base - one.base + (c + d - a - b) / 2
            breaks.append(Break(one.last, two.first, float(jump), float(b - a + d - c) / 2))
        return breaks


def _longest(given: list[Gate], fastest: float) -> tuple[int, OffsetBand | None]:
    """The longest beginning, of both kinds of gates, through which a line goes: how many gates, and the lines."""
    kinds = {gate.above for gate in given}
    if len(kinds) < 2:
        return 0, None
    best = line(given, fastest)
    good, bad = (len(given), len(given)) if best is not None else (1, len(given))
    while bad - good > 1:
        middle = (good + bad) // 2
        both = len({gate.above for gate in given[:middle]}) == 2
        tried = line(given[:middle], fastest) if both else None
        if tried is None and both:
            bad = middle
        else:
            good, best = middle, tried
    return good, best
