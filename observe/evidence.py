"""What a timeline says about waiting: each wait, the message that ended it, and when the peer began to do its part."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.observe.attribution import Blame, Stay, Transfer, Usual, Wait, Without, attribute, usual
from hocket.observe.timeline import Timeline, taken

Rows = NDArray[Any]
Floats = NDArray[np.float64]
MOST_BYTES = 1 << 48
"""Of a message: more is nonsense."""
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
        return attribute(self.waits, self.stays, self.usual, self.without, self.disagree)


def evidence(timeline: Timeline) -> Evidence:
    """Cost: some 5 us a slice."""
    first: dict[tuple[int, float], tuple[float, Wait]] = {}
    transfers: list[Transfer] = []
    messages = ways(timeline)
    for group in ("waits", "room"):
        rows = timeline.of(group)
        for track in np.unique(rows["track"]).tolist():
            for ended, wait in _waits(timeline, rows[rows["track"] == track], group, messages):
                key = wait.rank, wait.since  # several peers may be awaited at once: the first to come ends it
                first[key] = min(first.get(key, (math.inf, wait)), (ended, wait), key=_first_to_come)
    for (_, source, dest), steps in received(messages).items():
        transfers += _transfers((source, dest), steps)
    calls = timeline.of("calls")
    stays = [
        Stay(int(rank), (timeline.tracks[track].comm, seq), begin / 1e9, end / 1e9)
        for rank, track, seq, begin, end in zip(
            timeline.ranks(calls), *(calls[n].tolist() for n in ("track", "seq", "begin", "end")), strict=True
        )
    ]
    idle = timeline.of("no core")
    without = [
        Without(int(rank), begin / 1e9, end / 1e9)
        for rank, begin, end in zip(timeline.ranks(idle), idle["begin"].tolist(), idle["end"].tolist(), strict=True)
    ]
    hosts = hosts_of(timeline)
    known = usual(transfers, lambda link: "near" if hosts.get(link[0]) == hosts.get(link[1]) else "far")
    return Evidence([wait for _, wait in first.values()], stays, transfers, without, known, _clocks(timeline))


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


class Way:
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


def ways(timeline: Timeline) -> dict[tuple[str, int, int], Way]:
    """By communicator, sender and receiver."""
    by_link: dict[tuple[str, int, int], Way] = defaultdict(Way)
    for group in ("sends", "receives"):
        rows = timeline.of(group)
        for track in np.unique(rows["track"]).tolist():
            mine = taken(rows, rows["track"] == track)
            rank, peer = timeline.tracks[track].process, int(mine["peer"][0])
            link = (rank, peer) if group == "sends" else (peer, rank)
            setattr(by_link[(timeline.tracks[track].comm, *link)], group, mine)
    return dict(by_link)


def received(messages: Mapping[tuple[str, int, int], Way]) -> dict[tuple[str, int, int], Steps]:
    """What each rank received, where both ends are known, and who was the last to offer what ended at one moment.

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
    timeline: Timeline, rows: Rows, group: str, messages: Mapping[tuple[str, int, int], Way]
) -> list[tuple[float, Wait]]:
    """Of one track.  A wait is for the messages that were under way then: the first to end after it began; and when."""
    track = timeline.tracks[int(rows["track"][0])]
    waits: list[tuple[float, Wait]] = []
    together = rows["begin"][rows["held"] == 0]
    for peer in np.unique(rows["peer"]).tolist():
        mine = rows[rows["peer"] == peer]
        link = (peer, track.process) if group == "waits" else (track.process, peer)
        way = messages.get((track.comm, *link))
        steps = way.steps(group == "waits") if way is not None and len(way.sends) and len(way.receives) else None
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
    """Of messages that were wanted before they were offered: all of their way is seen.

    Where that is rare, as on a link that always has more to carry, also of those that were awaited in the end: one is
    under way from when it was offered, and the one before it had come.
    """
    begun = np.maximum(steps.ready, np.append(-math.inf, steps.end[:-1]))
    known = steps.last & (steps.ready >= steps.wanted)
    if known.sum() < max(FEW, RARE * len(known)):
        known = steps.last & ~np.isnan(steps.ready) & (steps.end > np.maximum(steps.wanted, begun))
    seconds = np.maximum(0.0, steps.end - begun)
    return [Transfer(link, int(n), s) for n, s in zip(steps.bytes[known], seconds[known].tolist(), strict=True)]
