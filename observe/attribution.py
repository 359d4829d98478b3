"""Blame for waiting: every second that a rank waited goes to a late rank, a slow link, or to what no one can help.

Rank r waits for its peer from `since`, when it has nothing else to do, `until` something moves.  The peer began to do
its part (to offer the message, or to take it) at `ready`.  So the wait has two parts:

    ready .. until     the message was under way.  What exceeds the usual time of such a message is the link's.
    since .. ready     the peer had not begun.  What did it do meanwhile?
                         it waited itself: that wait is asked in turn, so blame travels back to its root;
                         it was inside the same call: it worked (reduced, copied);
                         it had no core: so it says itself;
                         it was outside: what it computed longer than the others did before this call, it was late; the
                         rest it came late because it had left the call before late, and what it did then is asked.

The parts of a wait add up to it, always.  Scalasca calls since .. ready Late Sender, and the walk back delay costs
(Boehme et al., "Identifying the root causes of wait states", ICPP 2010; the last rule is their long-term costs).
Needs only what each rank knows by itself, on aligned clocks.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hocket.recording import NOBODY


class Wait(NamedTuple):
    """One rank waits for another.  Seconds."""

    rank: int
    peer: int
    call: Hashable
    """The same on all ranks that take part in it."""
    link: tuple[int, int]
    """The way of the bytes: from rank, to rank."""
    nbytes: int
    ready: float
    """NaN: not known."""
    since: float
    until: float


class Stay(NamedTuple):
    """One rank inside one call.  Seconds."""

    rank: int
    call: Hashable
    enter: float
    leave: float


class Transfer(NamedTuple):
    """A message whose both ends were ready: the seconds from then on are its own."""

    link: tuple[int, int]
    nbytes: int
    seconds: float


class Without(NamedTuple):
    """A rank that wanted a core and had none, from `since` until `until`."""

    rank: int
    since: float
    until: float


BACK = 32
"""Calls that a delay is followed back over."""
FINEST = 1e-6
"""Seconds: shorter pieces are not followed."""
SLACK = 2.0
"""A message is slow when it took more than this factor times the usual."""
MOST = 200_000
"""Waits that are followed, the longest: 20 us each, and more where blame travels far.  The others are unsure."""
Cause = tuple[Any, ...]
"""("late", rank), ("core", rank), ("work", rank), ("link", source, dest), ("cable", host, host), ("transfer",) or
("unsure",)."""
Usual = Callable[[tuple[int, int], int], float]
"""(link, bytes) -> seconds."""
Slow = Callable[[Wait], Cause]
"""Whose fault it is that the message which ended this wait took longer than usual."""


@dataclass
class Blame:
    """Seconds by cause, and in which calls."""

    seconds: dict[Cause, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[Cause, dict[Hashable, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    pairs: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    """(who waited, for whom): seconds, before it is asked why.  A wait for whoever comes first is not among them."""
    moving: dict[Cause, dict[Hashable, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    """Seconds of the usual transfers over each cable, by call."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def worst(self, *kinds: str) -> list[tuple[Cause, float]]:
        """The causes of these kinds, the largest first."""
        return sorted(((k, v) for k, v in self.seconds.items() if k[0] in kinds), key=lambda kv: (-kv[1], kv[0]))


def usual(transfers: Iterable[Transfer], kind: Callable[[tuple[int, int]], str] = lambda link: "") -> Usual:
    """The time of a message on the usual link of its kind (inside a host, between hosts), by its size.

    The median of the faster half of each link's messages of a size, and of those the lower median over the links: one
    bad link does not move it.  Where most links are bad, none is: compare with an earlier run.  Between sizes: a line.
    """
    seen: dict[str, dict[int, dict[tuple[int, int], list[float]]]]
    seen = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for each in transfers:
        seen[kind(each.link)][each.nbytes][each.link].append(each.seconds)
    known = {}
    for name, sizes in seen.items():
        known[name] = [(nbytes, _usual_of(links.values())) for nbytes, links in sorted(sizes.items())]
    return lambda link, nbytes: _between(known.get(kind(link), []), nbytes)


def _usual_of(links: Iterable[list[float]]) -> float:
    return statistics.median_low(statistics.median(sorted(t)[: max(1, len(t) // 2)]) for t in links)


def _between(points: Sequence[tuple[int, float]], nbytes: int) -> float:
    if not points:
        return 0.0
    at = bisect.bisect_left(points, (nbytes, 0.0))
    if at < len(points) and points[at][0] == nbytes or len(points) == 1:
        return points[min(at, len(points) - 1)][1]
    at = min(max(at, 1), len(points) - 1)
    (n0, t0), (n1, t1) = points[at - 1 : at + 1]
    return max(0.0, t0 + (t1 - t0) / (n1 - n0) * (nbytes - n0))


def attribute(
    waits: Iterable[Wait],
    stays: Iterable[Stay],
    usual: Usual,
    without: Iterable[Without] = (),
    error: Callable[[int, int], float] = lambda one, other: 0.0,
    slow: Slow = lambda wait: ("link", *wait.link),
    cable: Callable[[tuple[int, int]], Cause | None] = lambda link: None,
) -> Blame:
    """All waits of all ranks, divided.  `error`: seconds that two clocks may disagree; shorter waits are "unsure".
    `cable`: what a link shares with others, if it does.

    Cost: 20 us a wait, of MOST at most.
    """
    given = sorted((w for w in waits if w.until > w.since), key=lambda w: w.until - w.since, reverse=True)
    asking = _Asking(given, stays, usual, without, error, slow, cable)
    for wait in given[:MOST]:
        asking.ask(wait)
    for wait in given[MOST:]:
        asking.blame_unsure(wait)
    return asking.blame


class _Spans:
    """The spans of ranks, by rank, in order of time: none of a rank's spans overlaps the one before."""

    def __init__(self, spans: Iterable[tuple[int, float, float, int]]) -> None:
        self.of: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
        for rank, begin, end, number in sorted(spans, key=lambda s: s[1]):
            mine = self.of[rank]
            begin = max(begin, mine[-1][1]) if mine else begin
            if end > begin:
                mine.append((begin, end, number))
        self.ends = {rank: [end for _, end, _ in mine] for rank, mine in self.of.items()}

    def between(self, rank: int, a: float, b: float) -> Iterable[tuple[float, float, int]]:
        """The parts of its spans that lie in a..b, and their numbers."""
        mine = self.of.get(rank, [])
        for begin, end, number in mine[bisect.bisect_right(self.ends.get(rank, []), a) :]:
            if begin >= b:
                return
            yield max(a, begin), min(b, end), number


class _Asking:
    def __init__(
        self, waits: Sequence[Wait], stays: Iterable[Stay], usual: Usual, without: Iterable[Without],
        error: Callable[[int, int], float], slow: Slow, cable: Callable[[tuple[int, int]], Cause | None],
    ) -> None:  # fmt: skip
        self.waits, self.usual, self.error, self.slow, self.cable = waits, usual, error, slow, cable
        self.waiting = _Spans((w.rank, w.since, w.until, i) for i, w in enumerate(waits))
        self.without = _Spans((w.rank, w.since, w.until, 0) for w in without)
        every = sorted(stays, key=lambda s: s.enter)
        self.inside = _Spans((s.rank, s.enter, s.leave, i) for i, s in enumerate(every))
        computed: dict[Hashable, list[float]] = defaultdict(list)
        for mine in self.inside.of.values():
            for (_, left, _), (enter, _, number) in itertools.pairwise(mine):
                computed[every[number].call].append(enter - left)
        typical = {call: statistics.median_low(gaps) for call, gaps in computed.items()}
        self.gap = [typical.get(stay.call, 0.0) for stay in every]
        """The median rank computes so long before each call."""
        self.todo: list[tuple[int, float, float, tuple[int, ...], int]] = []
        """A rank held somebody up from a to b: divide that time.  Whom was asked before, and how many calls back."""
        self.blame = Blame()
        self.call: Hashable = None
        """The call of the wait that is asked about."""

    def ask(self, wait: Wait) -> None:
        self._begin(wait)
        if math.isnan(wait.ready):  # what it waited for was there when it looked, or nobody told
            self._held(("unsure",), wait.rank, wait.since, wait.until)
            return
        if wait.until - wait.since <= self.error(wait.rank, wait.peer):
            self._add(("unsure",), wait.until - wait.since)
            return
        self._split(wait, wait.since, wait.until, (wait.rank,), 0)
        while self.todo:
            self._doing(*self.todo.pop())

    def blame_unsure(self, wait: Wait) -> None:
        """Without following it."""
        self._begin(wait)
        self._add(("unsure",), wait.until - wait.since)

    def _begin(self, wait: Wait) -> None:
        self.call = wait.call
        if wait.peer != NOBODY:
            self.blame.pairs[wait.rank, wait.peer] += wait.until - wait.since

    def _add(self, cause: Cause, seconds: float) -> None:
        if seconds > 0:
            self.blame.seconds[cause] += seconds
            self.blame.calls[cause][self.call] += seconds

    def _held(self, cause: Cause, rank: int, a: float, b: float) -> None:
        """From a to b it was this, unless `rank` had no core."""
        missing = sum(end - begin for begin, end, _ in self.without.between(rank, a, b)) if b > a else 0.0
        self._add(("core", rank), missing)
        self._add(cause, b - a - missing)

    def _split(self, wait: Wait, a: float, b: float, asked: tuple[int, ...], back: int) -> None:
        """The piece a..b of a wait."""
        ready = min(wait.ready, b)
        if ready > a:
            if wait.peer in asked or ready - a < FINEST:  # in `asked`: the clocks disagree by more than `error`
                self._add(("unsure",), ready - a)
            else:
                self.todo.append((wait.peer, a, ready, (*asked, wait.peer), back))
            a = ready
        took, expected = wait.until - wait.ready, self.usual(wait.link, wait.nbytes)
        # What is usual comes first; of a piece of a wait, only what lies behind it is the link's.
        late_from = wait.ready + expected if took > SLACK * expected + self.error(*wait.link) else wait.until
        cut = min(b, max(a, late_from))
        self._add(("transfer",), cut - a)
        if cut > a and (cable := self.cable(wait.link)) is not None:
            self.blame.moving[cable][self.call] += cut - a
        if b > cut:
            self._held(self.slow(wait), wait.rank, cut, b)

    def _doing(self, rank: int, a: float, b: float, asked: tuple[int, ...], back: int) -> None:
        at = a
        for begin, end, number in self.waiting.between(rank, a, b):
            self._busy(rank, at, begin, back)
            if math.isnan(self.waits[number].ready):
                self._held(("unsure",), rank, begin, end)
            else:
                self._split(self.waits[number], begin, end, asked, back)
            at = end
        self._busy(rank, at, b, back)

    def _busy(self, rank: int, a: float, b: float, back: int) -> None:
        """Blame a rank that did not wait itself: inside a call it worked, outside it computed."""
        at = a
        for begin, end, _ in self.inside.between(rank, a, b):
            self._outside(rank, at, begin, back)
            self._held(("work", rank), rank, begin, end)
            at = end
        self._outside(rank, at, b, back)

    def _outside(self, rank: int, a: float, b: float, back: int) -> None:
        """Blame a rank that computed before its next call; for as long as the others did, the call before."""
        if b <= a:
            return
        mine = self.inside.of.get(rank, [])
        i = bisect.bisect_right(self.inside.ends.get(rank, []), a)
        if not 0 < i < len(mine):
            self._held(("late", rank), rank, a, b)
            return
        left, (enter, _, number) = mine[i - 1][1], mine[i]
        usual_gap = self.gap[number]
        own = min(b - a, max(0.0, b - max(a, left + usual_gap)))
        if b - a > own:
            shift = min(usual_gap, enter - left)
            end = min(b - own - shift, left)
            if back < BACK:
                self.todo.append((rank, end - (b - a - own), end, (), back + 1))
            else:
                self._add(("unsure",), b - a - own)
        self._held(("late", rank), rank, b - own, b)
