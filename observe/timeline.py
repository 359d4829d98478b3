"""The contents of a trace, whatever file it is in: slices and counts on tracks of processes, and words about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.recording import NOBODY

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


class Track(NamedTuple):
    """A row of the picture."""

    process: int
    """A rank of the job."""
    name: str
    counter: bool = False
    group: str = ""
    """The meaning of its slices: a key of `merging.GROUPS`."""
    comm: str = ""
    """The communicator."""


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
