"""Links that are slower than their like.  Pure: from a report to sentences.

A link has three costs: the latency, and seconds a byte in each direction.  It is compared with those of its kind: over
the same transport, inside hosts or between them.  What explains more is said first: a host all of whose links are slow,
then two hosts, then two ranks.  What has been explained is not said again.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from hocket.tools.doctor.pairing import Pair
from hocket.tools.doctor.report import Report
from hocket.tools.doctor.units import amount, times

TOO_SLOW, UNSTEADY = 2.0, 5.0
"""A link is suspicious if it takes so many times what is usual for its kind; where ranks outnumber the cores."""
OF_A_HOST = {
    (False, "answers"): "Host {name} answers {times} slower than the others",
    (False, "sends"): "Host {name} sends {times} slower than the others",
    (False, "receives"): "Host {name} receives {times} slower than the others",
    (True, "answers"): "Inside host {name}, a message takes {times} as long as elsewhere",
    (True, "sends"): "Inside host {name}, bytes move {times} slower than elsewhere",
}
"""(inside hosts?, aspect) -> what is said."""


class Suspicion(NamedTuple):
    text: str
    pairs: frozenset[Pair]
    """The links that are measured once more before this is said."""


class PairCost(NamedTuple):
    """The cost of one direction: from one rank to another."""

    source: int
    dest: int
    seconds: float
    """Seconds of a short message, or of a byte."""

    @property
    def pair(self) -> Pair:
        return min(self.source, self.dest), max(self.source, self.dest)


def suspicions(report: Report) -> list[Suspicion]:
    """The slow parts, hosts first."""
    found: list[Suspicion] = []
    for inside in (False, True):
        pairs = [pair for pair in judged(report) if report.inside(pair) is inside]
        for kind in sorted({report.transport(pair) for pair in pairs}):
            own = [pair for pair in pairs if report.transport(pair) == kind]
            latency, rate = _costs(report, own)
            explained: set[tuple[str, int, int]] = set()
            found += _hosts(report, inside, latency, rate, explained)
            if not inside:
                found += _directions(report, rate, explained)
            found += _links(report, inside, "answers", latency, explained)
            found += _links(report, inside, "sends", rate, explained)
    return found


def judged(report: Report) -> list[Pair]:
    """The links that can be compared: not those inside hosts whose ranks wait for cores."""
    return [pair for pair in report.links if not (report.inside(pair) and report.host_of[pair[0]] in report.crowded)]


def _limit(report: Report) -> float:
    return UNSTEADY if report.crowded else TOO_SLOW


def _costs(report: Report, pairs: list[Pair]) -> tuple[list[PairCost], list[PairCost]]:
    """Latencies (each once in each direction) and seconds a byte."""
    latency, rate = [], []
    for a, b in pairs:
        link = report.links[a, b]
        latency += [PairCost(a, b, link.latency), PairCost(b, a, link.latency)]
        rate += [PairCost(a, b, 1 / link.out), PairCost(b, a, 1 / link.back)]
    return latency, rate


def _hosts(
    report: Report, inside: bool, latency: list[PairCost], rate: list[PairCost], explained: set[tuple[str, int, int]]
) -> Iterator[Suspicion]:
    """Hosts all of whose links are slower than those that do not touch them."""
    grouped = {"answers": _by_hosts(report, latency), "sends": _by_hosts(report, rate)}
    grouped["receives"] = grouped["sends"]
    medians = {aspect: {at: median(c.seconds for c in some) for at, some in each.items()}
               for aspect, each in grouped.items()}  # fmt: skip
    limit = _limit(report)
    for host, name in enumerate(report.names):
        for (within, aspect), sentence in OF_A_HOST.items():
            end = 1 if aspect == "receives" else 0
            own = {at: seconds for at, seconds in medians[aspect].items() if at[end] == host}
            others = [seconds for at, seconds in medians[aspect].items() if host not in at]
            if within is not inside or not own or not others or min(own.values()) <= limit * median(others):
                continue
            found, usual = median(own.values()), median(others)
            slow = [c for at in own for c in grouped[aspect][at]]
            explained |= {(_cost(aspect), c.source, c.dest) for c in slow}
            if aspect == "answers":
                explained |= {("latency", c.dest, c.source) for c in slow}
            text = sentence.format(name=name, times=times(found / usual))
            yield Suspicion(f"{text} ({_both(aspect, found, usual)})", frozenset(c.pair for c in slow))


def _directions(report: Report, rate: list[PairCost], explained: set[tuple[str, int, int]]) -> Iterator[Suspicion]:
    """Two hosts between which one direction is slower than the other."""
    grouped = _by_hosts(report, rate)
    for (a, b), there in grouped.items():
        back = grouped.get((b, a), [])
        if not back or any(("rate", c.source, c.dest) in explained for c in [*there, *back]):
            continue
        slow, fast = median(c.seconds for c in there), median(c.seconds for c in back)
        if slow > _limit(report) * fast:
            explained |= {("rate", c.source, c.dest) for c in there}
            text = f"Host {report.names[a]} sends to host {report.names[b]} {times(slow / fast)} slower than "
            text += f"it receives from there ({_both('sends', slow, fast)})"
            yield Suspicion(text, frozenset(c.pair for c in there))


def _links(
    report: Report, inside: bool, aspect: str, costs: list[PairCost], explained: set[tuple[str, int, int]]
) -> Iterator[Suspicion]:
    """Two hosts, else two ranks, between which it takes longer than usual."""
    pairs = {c.pair for c in costs}
    if len(pairs) < 3:
        return
    usual = median(c.seconds for c in costs)
    most = _limit(report) * usual
    slow = [c for c in costs if c.seconds > most and (_cost(aspect), c.source, c.dest) not in explained]
    if aspect == "answers":
        host = report.host_of
        slow = [c for c in slow if (host[c.source], c.source) < (host[c.dest], c.dest)]
    every = _by_hosts(report, costs)
    told: set[PairCost] = set()
    for (a, b), some in {} if inside else _by_hosts(report, slow).items():
        if len(some) == len(every[a, b]):
            told |= {*some}
            at = median(c.seconds for c in some)
            verb = "answers host" if aspect == "answers" else "sends to host"
            text = f"Host {report.names[a]} {verb} {report.names[b]} {times(at / usual)} slower than usual "
            yield Suspicion(text + f"({_both(aspect, at, usual)})", frozenset(c.pair for c in some))
    for c in sorted((c for c in slow if c not in told), key=lambda c: -c.seconds):
        verb = "answers rank" if aspect == "answers" else "sends to rank"
        text = f"Rank {c.source} {verb} {c.dest} {times(c.seconds / usual)} slower than usual "
        text += f"{'inside' if inside else 'between'} hosts ({_both(aspect, c.seconds, usual)})"
        yield Suspicion(text, frozenset([c.pair]))


def _by_hosts(report: Report, costs: list[PairCost]) -> dict[tuple[int, int], list[PairCost]]:
    found: dict[tuple[int, int], list[PairCost]] = {}
    for c in costs:
        found.setdefault((report.host_of[c.source], report.host_of[c.dest]), []).append(c)
    return found


def _cost(aspect: str) -> str:
    return "latency" if aspect == "answers" else "rate"


def _both(aspect: str, found: float, usual: float) -> str:
    return f"{amount(_cost(aspect), found)}, others {amount(_cost(aspect), usual)}"
