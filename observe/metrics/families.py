"""The exported families of a rank, and their reading: when somebody asks, so calls pay nothing for it.

Labels are bounded: kinds of calls beyond MOST_KINDS are one kind, and so are peers beyond MOST_PEERS.  No label has a
number of a call, a size or a time.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import hocket
from hocket.recording import NOBODY, SPAN, Kind, Ring, standings

MOST_KINDS, MOST_PEERS = 200, 8
OTHER = "other"
SHARE = 0.1
"""The part of the waiting since the last look: a peer with more gets a label of its own."""


class Family(NamedTuple):
    """A number with its labels, as Prometheus has it."""

    name: str
    """In base units; of what is counted without "_total"."""
    counts: bool
    """Does it only grow?"""
    unit: str
    """The unit as OpenTelemetry writes it."""
    about: str
    labels: tuple[str, ...]


CALLS = ("rank", "comm", "lane", "collective", "algorithm", "transport")
FAMILIES = {
    family.name: family
    for family in (
        Family("hocket_calls", True, "{call}", "Calls that have begun.", CALLS),
        Family("hocket_bytes", True, "By", "Bytes of the vectors of these calls.", CALLS),
        Family("hocket_call_seconds", True, "s", "Seconds from the turn of each call to its end (an estimate).", CALLS),
        Family("hocket_wait_seconds", True, "s", "Seconds of these in which nothing moved (an estimate).", CALLS),
        Family("hocket_peer_wait_seconds", True, "s", "Waits of more than 50 us, by the rank that was waited for; a"
               " lower bound where more than 1,024 records came between two looks.", ("rank", "comm", "peer")),
        Family("hocket_stalled_seconds", False, "s", "Since when the rank waits in the call that it is in; 0: it does"
               " not wait.", ("rank", "comm")),
        Family("hocket_waits_for", False, "1", "1 for each rank that is waited for now.", ("rank", "comm", "peer")),
        Family("hocket_size", False, "{rank}", "Ranks of the communicator.", ("rank", "comm")),
        Family("hocket_lost_ranks", False, "{rank}", "Those of them that are known to have died.", ("rank", "comm")),
        Family("hocket_mark", False, "1", "The latest value of a mark of this name; of a parameter server, too: its"
               " pushes, pulls, workers and clocks.", ("rank", "mark")),
    )
}  # fmt: skip
"""By name."""
Values = dict[tuple[str, ...], float]
"""Values of the labels, in their order -> the number."""


class MetricsReader:
    """The numbers of this rank on some communicators, which it does not keep alive.

    After `renew` they are those of the new one, which begins with zeros, as after a restart.
    """

    def __init__(self, comms: Iterable[hocket.Communicator]) -> None:
        self._comms = [comm.following() for comm in comms]
        self._kinds: set[tuple[str, ...]] = set()
        self._waits: dict[str, _WaitTimes] = defaultdict(_WaitTimes)
        self._marks: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()

    def read(self) -> dict[str, Values]:
        """Family -> its values.  Cost: 0.1 ms, and 2 us a record since the last look.  Any thread may call it."""
        families: dict[str, Values] = {name: defaultdict(float) for name in FAMILIES}
        with self._lock:
            for comm in filter(None, (each() for each in self._comms)):
                self._count(comm, families)
                where = str(comm.members[comm.rank]), comm.name
                families["hocket_size"][where] = comm.size
                families["hocket_lost_ranks"][where] = len(comm.lost)
                if comm.config.recorder:
                    self._recorded(comm, where, families)
        return families

    def _count(self, comm: hocket.Communicator, families: dict[str, Values]) -> None:
        rank = str(comm.members[comm.rank])
        for each in comm.stats():
            kind = rank, comm.name, each.lane, each.collective, each.algorithm, each.transport
            if len(self._kinds) < MOST_KINDS:
                self._kinds.add(kind)
            labels = kind if kind in self._kinds else (rank, comm.name, OTHER, OTHER, OTHER, OTHER)
            families["hocket_calls"][labels] += each.calls
            families["hocket_bytes"][labels] += each.bytes
            families["hocket_call_seconds"][labels] += each.seconds
            families["hocket_wait_seconds"][labels] += each.waited

    def _recorded(self, comm: hocket.Communicator, where: tuple[str, str], families: dict[str, Values]) -> None:
        recorded = comm.recorder().recorded()
        inside = [each for each in standings(recorded) if each.comm == comm.name and each.inside and each.waits_for]
        families["hocket_stalled_seconds"][where] = max((each.since for each in inside), default=0.0)
        for peer in list(dict.fromkeys(peer for each in inside for peer in each.waits_for))[:MOST_PEERS]:
            families["hocket_waits_for"][(*where, str(peer))] = 1
        waits = self._waits[comm.name]
        waits.take([ring for ring in recorded.rings if ring.comm == comm.name], comm.generation)
        for name, seconds in waits.named.items():
            families["hocket_peer_wait_seconds"][(*where, name)] = seconds
        for ring in recorded.rings:
            marks = ring.records["kind"] == Kind.MARK
            for mark in ring.records[marks & (ring.records["lane"] != SPAN)]:
                key = where[0], recorded.what(int(mark["what"])).text
                if key in self._marks or len(self._marks) < MOST_KINDS:
                    self._marks[key] = int(mark["bytes"])
        families["hocket_mark"].update(self._marks)


class _WaitTimes:
    """Seconds that were waited for each peer, summed up from look to look.  What was counted stays where it is."""

    def __init__(self) -> None:
        self.named: dict[str, float] = {OTHER: 0.0}
        self._taken: dict[tuple[str, str, int, int], int] = {}

    def take(self, rings: Iterable[Ring], generation: int = 0) -> None:
        """The records that have come since the last look."""
        fresh: dict[int, float] = defaultdict(float)
        for ring in rings:
            key, whole = (ring.kind, ring.transport, ring.priority, generation), ring.lost + len(ring.records)
            new = min(max(0, whole - self._taken.get(key, 0)), len(ring.records))
            self._taken[key] = whole
            for peer, seconds in _waited(ring.records[len(ring.records) - new :]):
                rank = ring.world_rank(peer)
                if rank is not None:
                    fresh[rank] += seconds
        for rank, seconds in sorted(fresh.items(), key=lambda each: -each[1]):
            name = str(rank)
            if name not in self.named and len(self.named) <= MOST_PEERS and seconds > SHARE * sum(fresh.values()):
                self.named[name] = 0.0
            self.named[name if name in self.named else OTHER] += seconds


def _waited(records: NDArray[Any]) -> list[tuple[int, float]]:
    """(peer, seconds) of each wait that has ended; of several peers, the first that is told."""
    waits, awaited = [], dict[int, int]()
    wanted = np.isin(records["kind"], (Kind.WAIT_RECV, Kind.WAIT_SEND, Kind.MOVED))
    for seq, kind, peer, nanoseconds in records[wanted][["seq", "kind", "peer", "bytes"]].tolist():
        if kind != Kind.MOVED:
            awaited.setdefault(seq, peer)
        elif (waited := awaited.pop(seq, NOBODY)) != NOBODY:
            waits.append((waited, nanoseconds * 1e-9))
    return waits
