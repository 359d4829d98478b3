"""A timeline's evidence about waiting: each wait, the message that ended it, and when the peer began to do its part."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.observe.attribution import SLACK, Blame, Cause, Stay, Transfer, Usual, Wait, Without, attribute, usual
from hocket.observe.connections import connections
from hocket.observe.timeline import Group, Timeline, taken

Rows = NDArray[Any]
Floats = NDArray[np.float64]
MOST_BYTES = 1 << 48
"""The largest size of a message: more is nonsense."""
ROOM = 0.7
"""Share of a cable's rate: while it carries less, there is room for more."""
FEW, RARE = 5, 0.1
"""Messages whose whole way is seen, of one link: fewer of them, or a smaller part of all, is rare."""


@dataclass(frozen=True)
class Evidence:
    """Seconds, from the timeline's ns."""

    waits: list[Wait]
    stays: list[Stay]
    transfers: list[Transfer]
    without: list[Without]
    usual: Usual
    sharing: Sharing
    clocks: dict[int, tuple[object, float]]
    """By rank: which clock it has, and by how many seconds that may be wrong; infinite: it is not known."""

    @property
    def error(self) -> float:
        """By how much the clocks of two ranks disagree at most.  Seconds."""
        return max((self.disagree(0, rank) for rank in self.clocks), default=0.0)

    def disagree(self, one: int, other: int) -> float:
        """By how much the clocks of two ranks disagree at most.  Seconds."""
        (mine, error), (theirs, more) = (self.clocks.get(rank, (rank, math.inf)) for rank in (one, other))
        return 0.0 if mine == theirs else error + more

    def blame(self) -> Blame:
        """Every second that was waited, by cause."""
        shared = self.sharing
        return attribute(self.waits, self.stays, self.usual, self.without, self.disagree, shared.slow, shared.cable)


class Sharing:
    """Which links share a cable, and what each carried in a window of time: a slow message may be the cable's fault.

    A link is to blame only where others of its kind carried more meanwhile: inside a host, or between hosts if they
    are the only ones on their cables.  Links of two hosts have one cable in each direction.  What is slow there is the
    cable's, unless that had room and carried more for another of them.
    """

    def __init__(
        self, hosts: Mapping[int, str], links: Mapping[tuple[int, int], Rows], tcp: Collection[tuple[int, int]] = ()
    ) -> None:  # fmt: skip
        """`links`: rows of begin, end and bytes of each one's messages; `tcp`: those that are known to go over TCP."""
        self._hosts, self._links, self._tcp = hosts, links, tcp
        self._mates: dict[Cause, list[tuple[int, int]]] = defaultdict(list)
        for link in links:
            self._mates[self.kind(link)].append(link)
        self._rates: dict[Cause, float] = {}

    def kind(self, link: tuple[int, int]) -> Cause:
        """The hosts, and inside a host the transport: links of one kind have them in common."""
        ends = self._hosts.get(link[0], ""), self._hosts.get(link[1], "")
        return ("cable" if ends[0] != ends[1] else "tcp" if link in self._tcp else "near", *ends)

    def cable(self, link: tuple[int, int]) -> Cause | None:
        """That between its hosts; None inside a host."""
        kind = self.kind(link)
        return kind if kind[0] == "cable" else None

    def rate(self, cable: Cause) -> float:
        """Bytes a second of all links over it together, while any message was under way."""
        if cable not in self._rates:
            begin, end, nbytes = np.concatenate([self._links[link] for link in self._mates[cable]], axis=1)
            order = np.argsort(begin)
            until = np.maximum.accumulate(end[order])
            busy = (until - np.maximum(begin[order], np.append(-math.inf, until[:-1]))).clip(0).sum()
            self._rates[cable] = float(nbytes.sum() / busy) if busy else math.inf
        return self._rates[cable]

    def slow(self, wait: Wait) -> Cause:
        """Whose fault it is that the message of this wait was slow."""
        cable, link = self.cable(wait.link), ("link", *wait.link)
        mates = [mate for mate in self._mates[self.kind(wait.link)] if mate != wait.link]
        if cable is None or not mates:
            others = mates or [other for other in self._links if other != wait.link and self.cable(other) is not None]
            wanted = SLACK * wait.nbytes / (wait.until - wait.ready)
            if any(self._best(other, wait.ready, wait.until) >= wanted for other in others):
                return link
            return cable or ("transfer",)
        carried = [self._carried(mate, wait.ready, wait.until) for mate in mates]
        room = sum(carried) + wait.nbytes < ROOM * self.rate(cable) * (wait.until - wait.ready)
        return link if room and max(carried) > SLACK * wait.nbytes else cable

    def _met(self, link: tuple[int, int], since: float, until: float) -> Rows:
        rows = self._links[link]
        return rows[:, (rows[0] < until) & (rows[1] > since)]

    def _best(self, link: tuple[int, int], since: float, until: float) -> float:
        """The highest rate of its messages that were under way then."""
        begin, end, nbytes = self._met(link, since, until)
        return float((nbytes / (end - begin)).max(initial=0.0))

    def _carried(self, link: tuple[int, int], since: float, until: float) -> float:
        """Bytes, where a message's come evenly."""
        begin, end, nbytes = self._met(link, since, until)
        part = (np.minimum(end, until) - np.maximum(begin, since)) / (end - begin)
        return float((part * nbytes).sum())


def evidence(timeline: Timeline) -> Evidence:
    """Cost: some 5 us a slice."""
    first: dict[tuple[int, float], tuple[float, Wait]] = {}
    transfers: list[Transfer] = []
    messages = ways(timeline)
    for group in (Group.WAITS, Group.ROOM):
        rows = timeline.of(group)
        for track in np.unique(rows["track"]).tolist():
            for ended, wait in _waits(timeline, rows[rows["track"] == track], group, messages):
                key = wait.rank, wait.since  # several peers may be awaited at once: the first to come ends it
                first[key] = min(first.get(key, (math.inf, wait)), (ended, wait), key=_first_to_come)
    carried: dict[tuple[int, int], list[Rows]] = defaultdict(list)
    for (_, source, dest), steps in received(messages).items():
        transfers += _transfers((source, dest), steps)
        rows = np.stack([np.maximum(steps.ready, steps.wanted), steps.end, steps.bytes])
        carried[source, dest].append(rows[:, rows[1] > rows[0]])  # NaN: not known
    calls = timeline.of(Group.CALLS)
    stays = [
        Stay(int(rank), (timeline.tracks[track].comm, seq), begin / 1e9, end / 1e9)
        for rank, track, seq, begin, end in zip(
            timeline.ranks(calls), *(calls[n].tolist() for n in ("track", "seq", "begin", "end")), strict=True
        )
    ]
    idle = timeline.of(Group.NO_CORE)
    without = [
        Without(int(rank), begin / 1e9, end / 1e9)
        for rank, begin, end in zip(timeline.ranks(idle), idle["begin"].tolist(), idle["end"].tolist(), strict=True)
    ]
    hosts = hosts_of(timeline)
    links = {link: np.concatenate(rows, axis=1) for link, rows in carried.items()}
    sharing = Sharing(hosts, links, connections(timeline))
    known = usual(transfers, lambda link: "far" if sharing.cable(link) is not None else sharing.kind(link)[0])
    return Evidence([wait for _, wait in first.values()], stays, transfers, without, known, sharing, _clocks(timeline))


def hosts_of(timeline: Timeline) -> dict[int, str]:
    """The host of each rank."""
    facts = timeline.about.get("ranks")
    ranks = facts if isinstance(facts, dict) else {}
    return {rank: str(_of(ranks, rank).get("host", "")) for rank in timeline.processes}


def _of(ranks: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    facts = ranks.get(str(rank))
    return facts if isinstance(facts, dict) else {}


def _clocks(timeline: Timeline) -> dict[int, tuple[object, float]]:
    facts = timeline.about.get("ranks")
    clocks: dict[int, tuple[object, float]] = {}
    for rank in timeline.processes:
        own = _of(facts if isinstance(facts, dict) else {}, rank)
        error = own.get("clock_error_us")
        clocks[rank] = str(own.get("clock")), 1e-6 * error if isinstance(error, (int, float)) else math.inf
    return clocks


class BothEnds:
    """All messages of one communicator from rank to rank, as the two ends have them."""

    def __init__(self) -> None:
        self.sends: Rows = np.empty(0)
        self.receives: Rows = np.empty(0)

    def steps(self, receiving: bool) -> Steps:
        """One end's messages, together with what the other end says of them."""
        own, other = (self.receives, self.sends) if receiving else (self.sends, self.receives)
        return Steps(own, _other_end(own, other))


def _first_to_come(each: tuple[float, Wait]) -> tuple[float, float]:
    """A sum takes the messages of all peers at once: of those that end together, the last to be offered was awaited."""
    ended, wait = each
    return ended, math.inf if math.isnan(wait.ready) else -wait.ready


class Steps:
    """Messages of one step of a call, on one way, are in flight together: they count as one.  In order of ends."""

    def __init__(self, rows: Rows, ready: Floats) -> None:
        key = rows["seq"].astype(np.uint64) << np.uint64(16) | rows["step"]
        _, of = np.unique(key, return_inverse=True)
        count = int(of.max()) + 1 if len(of) else 0
        seq, self.bytes = np.zeros(count, np.int64), np.bincount(of, rows["bytes"].clip(0, MOST_BYTES), count)
        seq[of] = rows["seq"]
        self.seq = seq
        self.wanted, self.ready, self.end = (np.full(count, math.inf) for _ in range(3))
        np.minimum.at(self.wanted, of, _began(rows))
        known = ~np.isnan(ready)
        np.minimum.at(self.ready, of[known], ready[known])
        self.ready[np.isinf(self.ready)] = math.nan
        self.end = np.zeros(count)
        np.maximum.at(self.end, of, rows["end"] / 1e9)
        order = np.argsort(self.end, kind="stable")
        for name in ("seq", "bytes", "wanted", "ready", "end"):
            setattr(self, name, getattr(self, name)[order])
        self.last = np.ones(count, bool)
        """Was no other message that ended at this moment offered later?  `received` finds out."""


def _other_end(own: Rows, other: Rows) -> Floats:
    """When the other end of each of these began; NaN where it is not known."""
    began = np.full(len(own), math.nan)
    if len(other):
        order = np.argsort(other["flow"], kind="stable")
        at = np.minimum(np.searchsorted(other["flow"][order], own["flow"]), len(other) - 1)
        same = (other["flow"][order][at] == own["flow"]) & (own["flow"] != 0)
        began[same] = _began(other)[order][at][same]
    return began


def _began(rows: Rows) -> Floats:
    """When each was ready, before it was held up by its predecessor.  Seconds."""
    began: Floats = (rows["begin"] - rows["held"].astype(np.int64)) / 1e9
    return began


def ways(timeline: Timeline) -> dict[tuple[str, int, int], BothEnds]:
    """By communicator, sender and receiver."""
    by_link: dict[tuple[str, int, int], BothEnds] = defaultdict(BothEnds)
    for group in (Group.SENDS, Group.RECEIVES):
        rows = timeline.of(group)
        for track in np.unique(rows["track"]).tolist():
            mine = taken(rows, rows["track"] == track)
            rank, peer = timeline.tracks[track].process, int(mine["peer"][0])
            link = (rank, peer) if group == Group.SENDS else (peer, rank)
            setattr(by_link[(timeline.tracks[track].comm, *link)], group.value, mine)
    return dict(by_link)


def received(messages: Mapping[tuple[str, int, int], BothEnds]) -> dict[tuple[str, int, int], Steps]:
    """The receptions of each rank, where both ends are known, and who was the last to offer what ended at one moment.

    A sum takes the messages of all peers at once, so how long the others were under way is not known.
    """
    steps = {link: way.steps(receiving=True) for link, way in messages.items() if len(way.sends) and len(way.receives)}
    of_rank: dict[tuple[str, int], list[Steps]] = defaultdict(list)
    for (comm, _, dest), each in steps.items():
        of_rank[comm, dest].append(each)
    for several in of_rank.values():
        ready = np.nan_to_num(np.concatenate([each.ready for each in several]), nan=-math.inf)
        _, moment = np.unique(np.concatenate([each.end for each in several]), return_inverse=True)
        latest = np.full(len(moment), -math.inf)
        np.maximum.at(latest, moment, ready)
        last = np.split(ready >= latest[moment], np.cumsum([len(each.end) for each in several])[:-1])
        for each, those in zip(several, last, strict=True):
            each.last = those
    return steps


def _waits(
    timeline: Timeline, rows: Rows, group: str, messages: Mapping[tuple[str, int, int], BothEnds]
) -> list[tuple[float, Wait]]:
    """The waits of one track.  A wait is for the messages that were under way then: the first to end after it began;
    and when."""
    track = timeline.tracks[int(rows["track"][0])]
    waits: list[tuple[float, Wait]] = []
    together = rows["begin"][rows["held"] == 0]
    for peer in np.unique(rows["peer"]).tolist():
        mine = rows[rows["peer"] == peer]
        link = (peer, track.process) if group == Group.WAITS else (track.process, peer)
        way = messages.get((track.comm, *link))
        steps = way.steps(group == Group.WAITS) if way is not None and len(way.sends) and len(way.receives) else None
        ready, nbytes = np.full(len(mine), math.nan), np.zeros(len(mine), np.int64)
        began = mine["begin"] - mine["held"].astype(np.int64)  # a track shows those that begin together one by one
        since = np.where(np.isin(began, together), began, mine["begin"]) / 1e9
        ended = np.full(len(mine), math.inf)
        if steps is not None:
            at = np.searchsorted(steps.end, since, side="right")
            known = at < len(steps.end)
            at = np.minimum(at, len(steps.end) - 1)
            known &= steps.seq[at] == mine["seq"]
            ready[known], nbytes[known] = steps.ready[at][known], steps.bytes[at][known]
            ended[known] = steps.end[at][known]
        whole = mine["seq"].tolist(), since.tolist(), mine["end"].tolist()
        for i, (seq, begin, end) in enumerate(zip(*whole, strict=True)):
            call = (track.comm, seq)
            wait = Wait(track.process, peer, call, link, int(nbytes[i]), float(ready[i]), begin, end / 1e9)
            waits.append((float(ended[i]), wait))
    return waits


def _transfers(link: tuple[int, int], steps: Steps) -> list[Transfer]:
    """The transfers of messages that were wanted before they were offered: all of their way is seen.

    Where that is rare, as on a link that always has more to carry, also of those that were awaited in the end: one is
    under way from when it was offered, and the one before it had come.
    """
    begun = np.maximum(steps.ready, np.append(-math.inf, steps.end[:-1]))
    known = steps.last & (steps.ready >= steps.wanted)
    if known.sum() < max(FEW, RARE * len(known)):
        known = steps.last & ~np.isnan(steps.ready) & (steps.end > np.maximum(steps.wanted, begun))
    seconds = np.maximum(0.0, steps.end - begun)
    return [Transfer(link, int(n), s) for n, s in zip(steps.bytes[known], seconds[known].tolist(), strict=True)]
