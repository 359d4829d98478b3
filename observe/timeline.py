"""The contents of a trace, whatever file it is in: slices and counts on tracks of processes, and words about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.recording import NOBODY, AsData, understood

SLICE = np.dtype([
    ("begin", "<i8"), ("end", "<i8"), ("flow", "<u8"), ("bytes", "<u8"), ("held", "<u8"),
    ("track", "<u4"), ("name", "<u4"), ("seq", "<u4"), ("peer", "<u2"), ("step", "<u2"),
])  # fmt: skip
"""ns since the trace began.  `flow`: slices with the same number, which is not 0, are joined by an arrow, in the order
of time.  `held`: ns that it was ready before `begin`, behind the one before it on its track.  `peer`, `step`: or
NOBODY."""
COUNT = np.dtype([("at", "<i8"), ("value", "<i8"), ("track", "<u4")])
VERSION = 1
"""The version of `about`, and of the rows."""


class Group(str, enum.Enum):
    """The meaning of the slices of a track, or of a counter's numbers."""

    CALLS = "calls"  # from the beginning to the end of a call
    QUEUE = "queue"  # submitted, and not begun
    UNTIMED = "untimed"  # short calls, of which only the order is known
    STEPS = "steps"  # steps of the calls' plans
    WAITS = "waits"  # nothing to do but wait for a message ...
    ROOM = "room"  # ... or until a peer takes one
    SENDS = "sends"  # a message, from when it was first offered to when all of it was handed over
    RECEIVES = "receives"  # a message, from when it was first wanted to when all of it had come
    KERNELS = "kernels"  # arithmetic, summed up at the end of a step
    NO_CORE = "no core"  # no core at the end of a wait
    MARKS = "marks"  # the program's own
    EVENTS = "events"  # failures, verdicts
    LONG_WAITS = "long waits"  # waits that the log tells of
    SPANS = "spans"  # deeds that the program, or a library, tells: they may lie in each other
    LINK = "link"  # a counter: what TCP says of a connection

    def __str__(self) -> str:
        return str(self.value)


class Track(NamedTuple):
    """A row of the picture."""

    process: int
    """A rank of the job."""
    name: str
    counter: bool = False
    group: str = ""
    """A `Group`; others are shown, and mean nothing."""
    comm: str = ""
    """The communicator."""
    messages: bool = False
    """Are its calls messages?  Their ranks number them each for itself, those of collectives alike."""
    peer: int = NOBODY
    """The rank at the other end, of a connection's counter ..."""
    counts: int = -1
    """... and which of its numbers this is, a `hocket.recording.Link`."""


@dataclass
class Timeline:
    """A whole trace.  Slices of one track follow each other, or lie in each other."""

    processes: dict[int, str]
    tracks: list[Track]
    names: list[str]
    slices: NDArray[Any]
    """Slices of dtype SLICE; `track` and `name` are places in the lists."""
    counts: NDArray[Any] = field(default_factory=lambda: np.empty(0, COUNT))
    about: dict[str, Any] = field(default_factory=dict)
    """JSON: version, job, hosts, communicators, clocks, and what is missing."""

    def of(self, group: str) -> NDArray[Any]:
        """The slices of all tracks of a group."""
        wanted = np.array([track.group == group and not track.counter for track in self.tracks], bool)
        return taken(self.slices, wanted[self.slices["track"]]) if len(self.tracks) else self.slices[:0]

    def queued(self, calls: NDArray[Any]) -> NDArray[Any]:
        """Which of these calls were asynchronous: by process, communicator and number one of those in the queue."""
        owners: dict[tuple[int, str], int] = {}
        each = [owners.setdefault((track.process, track.comm), len(owners)) for track in self.tracks]
        of, both = np.array(each, np.uint64), (calls, self.of(Group.QUEUE))
        mine, queued = (of[rows["track"]] << np.uint64(32) | rows["seq"] for rows in both)
        return np.isin(mine, queued)

    def as_data(self) -> dict[int, AsData]:
        """By the number of a name: what spans of that name tell."""
        told = self.about.get("spans")
        every = {i: understood(told.get(name)) for i, name in enumerate(self.names)} if isinstance(told, dict) else {}
        return {i: facts for i, facts in every.items() if facts is not None}

    def ranks(self, slices: NDArray[Any]) -> NDArray[Any]:
        """The process of each slice."""
        processes: NDArray[Any] = np.array([track.process for track in self.tracks], np.int64)[slices["track"]]
        return processes


def taken(rows: NDArray[Any], which: NDArray[Any]) -> NDArray[Any]:
    """`rows[which]`, of a mask or of places, 10 to 20 times as fast: NumPy copies rows with fields field by field."""
    places = np.flatnonzero(which) if which.dtype == bool else which
    chosen: NDArray[Any] = rows.view(f"V{rows.dtype.itemsize}").take(places).view(rows.dtype)
    return chosen


def stacked(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """`np.concatenate(parts)`, of rows with the same fields; one part at least."""
    dtype = parts[0].dtype
    rows: NDArray[Any] = np.concatenate([part.view(f"V{dtype.itemsize}") for part in parts]).view(dtype)
    return rows


def in_line(slices: NDArray[Any]) -> NDArray[Any]:
    """Slices of one track, one after the other: who was ready before its predecessor's end was `held` until then."""
    ordered = taken(slices, np.argsort(slices["end"], kind="stable"))
    ends = np.maximum.accumulate(ordered["end"])
    ordered["end"] = ends
    if len(ordered) > 1:
        begins = ordered["begin"].copy()
        ordered["begin"][1:] = np.maximum(begins[1:], ends[:-1])
        ordered["held"] += (ordered["begin"] - begins).astype(np.uint64)
    return ordered


def slices(count: int) -> NDArray[Any]:
    """So many empty ones."""
    spans = np.zeros(count, SLICE)
    spans["peer"] = spans["step"] = NOBODY
    return spans


def described(timeline: Timeline) -> dict[str, Any]:
    """All but slices and counts, as JSON: `about`, with processes, tracks and names."""
    rows = [len(timeline.slices), len(timeline.counts)]
    processes = {str(rank): name for rank, name in timeline.processes.items()}
    return {
        **timeline.about, "version": VERSION, "rows": rows,
        "processes": processes, "tracks": timeline.tracks, "names": timeline.names,
    }  # fmt: skip
