"""The numbers of a report: where each rank's time went, who waited for whom and why, what was moved, how links did."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.observe.attribution import Blame, Cause
from hocket.observe.connections import Connection, connections
from hocket.observe.evidence import Evidence, evidence, hosts_of
from hocket.observe.timeline import Group, Timeline

Rows = NDArray[Any]
SHARE = 0.1
"""The part of all waiting: a smaller part accuses nobody."""
CROWDED = 0.25
"""The part of all waiting: so much of it without a core is worth a sentence."""
RECURS = 3
"""Calls in which a cause must have its part: what happens once is chance."""
STANDS_OUT = 3.0
"""Times the typical rank's, or link's, part."""
FULL = 0.5
"""Share of the ranks' time: a cable for whose messages they wait so long is the limit, even if nothing is unusual."""


@dataclass(frozen=True)
class RankTimes:
    """Where one rank's time went, seconds."""

    rank: int
    host: str
    span: float
    """From its first call's beginning to its last call's end."""
    calls: int
    inside: float
    """In calls."""
    waiting: float
    kernels: float
    asynchronous: float
    """In calls that were queued: hidden, unless the program waited for them."""
    lost: int
    """Records."""

    @property
    def computing(self) -> float:
        """Outside of calls."""
        return max(0.0, self.span - self.inside)

    @property
    def moving(self) -> float:
        """In calls, and not waiting."""
        return max(0.0, self.inside - self.waiting)


@dataclass(frozen=True)
class CallStats:
    """All calls with one name."""

    name: str
    collective: str
    algorithm: str
    transports: str
    site: str
    dtype: str
    count: int
    """On all ranks."""
    nbytes: int
    """Bytes of one rank's vector."""
    seconds: float
    """Seconds of all ranks."""


@dataclass(frozen=True)
class Direction:
    """One direction between two ranks."""

    source: int
    dest: int
    messages: int
    nbytes: int
    rate: float
    """Bytes a second while its largest messages were under way: the median of the faster half; 0: not known."""
    usual: float
    """The rate that links of this kind have."""
    tcp: Connection = Connection()


@dataclass(frozen=True)
class Findings:
    """The findings of a report."""

    timeline: Timeline
    seconds: float
    ranks: list[RankTimes]
    calls: list[CallStats]
    links: list[Direction]
    blame: Blame
    evidence: Evidence
    culprits: list[tuple[Cause, float]] = field(default_factory=list)
    """Causes that stand out and recur, the largest first."""

    @property
    def efficiency(self) -> float:
        """The part of their time in which the ranks computed."""
        span = sum(rank.span for rank in self.ranks)
        return sum(rank.computing for rank in self.ranks) / span if span else 1.0

    @property
    def rounds(self) -> int:
        """Calls of the rank with the most."""
        return max((rank.calls for rank in self.ranks), default=0)


def find(timeline: Timeline) -> Findings:
    """Cost: some 10 us a slice, and what `attribute` takes."""
    proof = evidence(timeline)
    blame = proof.blame()
    span = timeline.slices
    seconds = float(span["end"].max() - span["begin"].min()) / 1e9 if len(span) else 0.0
    links = _links(timeline, proof)
    ranks = _ranks(timeline)
    full(blame, sum(rank.span for rank in ranks))
    named = culprits(blame, list(timeline.processes), [(link.source, link.dest) for link in links])
    return Findings(timeline, seconds, ranks, _calls(timeline), links, blame, proof, named)


def full(blame: Blame, span: float) -> None:
    """Where cables are the limit, the usual transfers over them are theirs.  `span`: of all ranks together."""
    if sum(sum(calls.values()) for calls in blame.moving.values()) < FULL * span:
        return
    for cable, calls in blame.moving.items():
        for call, seconds in calls.items():
            for cause, part in ((cable, seconds), (("transfer",), -seconds)):
                blame.seconds[cause] += part
                blame.calls[cause][call] += part


def culprits(blame: Blame, ranks: Sequence[int], links: Sequence[tuple[int, int]]) -> list[tuple[Cause, float]]:
    """Causes with a tenth of all waiting, in several calls, and much more than others of their kind.

    A cable needs no others: it has been compared with what its own links carry.
    """
    causes = []
    for cause, seconds in blame.worst("late", "core", "work", "link", "cable"):
        others = [blame.seconds.get((cause[0], *link), 0.0) for link in links]
        if cause[0] == "cable":
            others = []
        elif cause[0] != "link":
            others = [blame.seconds.get((cause[0], rank), 0.0) for rank in ranks]
        typical = statistics.median_low(others) if others else 0.0
        if seconds >= SHARE * blame.total and recurrence(blame, cause) >= RECURS and seconds >= STANDS_OUT * typical:
            causes.append((cause, seconds))
    return causes


def recurrence(blame: Blame, cause: Cause) -> int:
    """In how many calls it has a part worth naming: at least half of its mean."""
    parts = blame.calls.get(cause, {}).values()
    mean = sum(parts) / len(parts) if parts else 0.0
    return sum(part >= mean / 2 for part in parts)


def union(rows: Rows) -> float:
    """Seconds covered by slices, however they overlap."""
    if not len(rows):
        return 0.0
    rows = rows[np.argsort(rows["begin"], kind="stable")]
    ends = np.maximum.accumulate(rows["end"])
    begins = np.maximum(rows["begin"][1:], ends[:-1])
    rest = np.maximum(0, ends[1:] - begins).sum()
    return float(ends[0] - rows["begin"][0] + rest) / 1e9


def _ranks(timeline: Timeline) -> list[RankTimes]:
    groups = {name: timeline.of(name) for name in (Group.CALLS, Group.UNTIMED, Group.WAITS, Group.ROOM, Group.KERNELS)}
    of = {name: timeline.ranks(rows) for name, rows in groups.items()}
    late = timeline.queued(groups[Group.CALLS])
    hosts, facts, ranks = hosts_of(timeline), timeline.about.get("ranks"), []
    for rank in timeline.processes:
        mine = {name: rows[of[name] == rank] for name, rows in groups.items()}
        calls, waits = mine[Group.CALLS], np.concatenate([mine[Group.WAITS], mine[Group.ROOM]])
        queued = groups[Group.CALLS][late & (of[Group.CALLS] == rank)]
        span = float(calls["end"].max() - calls["begin"].min()) / 1e9 if len(calls) else 0.0
        own = facts.get(str(rank)) if isinstance(facts, dict) else None
        lost = own.get("lost") if isinstance(own, dict) else 0
        ranks.append(
            RankTimes(
                rank, hosts[rank], span, len(calls) + len(mine[Group.UNTIMED]), union(calls), union(waits),
                union(mine[Group.KERNELS]), union(queued), lost if isinstance(lost, int) else 0,
            )
        )  # fmt: skip
    return ranks


def _calls(timeline: Timeline) -> list[CallStats]:
    rows = np.concatenate([timeline.of(Group.CALLS), timeline.of(Group.UNTIMED)])
    facts = timeline.about.get("calls")
    about: Mapping[str, Any] = facts if isinstance(facts, dict) else {}
    if not len(rows):
        return []
    rows = rows[np.argsort(rows["name"], kind="stable")]
    numbers, firsts, counts = np.unique(rows["name"], return_index=True, return_counts=True)
    taken = np.add.reduceat((rows["end"] - rows["begin"]).astype(np.float64), firsts) / 1e9
    longest = np.maximum.reduceat(rows["bytes"], firsts)
    listed = []
    every = (numbers, counts, longest, taken)
    for number, count, nbytes, seconds in zip(*(each.tolist() for each in every), strict=True):
        name = timeline.names[number]
        own = about.get(name)
        words = {key: str(own.get(key, "")) if isinstance(own, dict) else "" for key in WORDS}
        listed.append(CallStats(name, **words, count=count, nbytes=nbytes, seconds=seconds))
    return sorted(listed, key=lambda calls: -calls.seconds)


WORDS = ("collective", "algorithm", "transports", "site", "dtype")


def _links(timeline: Timeline, proof: Evidence) -> list[Direction]:
    seen: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for each in proof.transfers:
        seen[each.link].append((each.nbytes, each.seconds))
    links = []
    tcp = connections(timeline)
    for link, some in sorted(seen.items()):
        largest = max(nbytes for nbytes, _ in some)
        if not largest:  # a barrier's, or what stands for messages in another program's trace
            continue
        times = sorted(seconds for nbytes, seconds in some if nbytes == largest)
        median, usual = statistics.median(times[: max(1, len(times) // 2)]), proof.usual(link, largest)
        links.append(
            Direction(*link, len(some), sum(n for n, _ in some), largest / median if median else 0.0,
                 largest / usual if usual else 0.0, tcp.get(link, Connection()))
        )  # fmt: skip
    return links
