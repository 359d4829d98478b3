"""Which part of the program the communication belongs to: its marks (`comm.mark("layer 3")`) name the parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.observe.timeline import Group, Timeline

BEFORE = "before the first mark"


@dataclass(frozen=True)
class LayerCalls:
    """Calls that began between a mark of this name and the next mark of any name; of all ranks together."""

    name: str
    calls: int
    exposed: float
    """Seconds in which the program stood still in blocking calls."""
    asynchronous: float
    """Seconds of calls that it had queued: hidden as far as it did not wait for them later."""
    waiting: float
    """Seconds of both in which nothing moved."""


def layers(timeline: Timeline) -> list[LayerCalls]:
    """The largest exposed part first; nothing without marks.  Cost: some 3 us a call."""
    marks, calls = timeline.of(Group.MARKS), timeline.of(Group.CALLS)
    if not len(marks):
        return []
    waits = np.concatenate([timeline.of(Group.WAITS), timeline.of(Group.ROOM)])
    late = timeline.queued(calls)
    where, waited = _marked(timeline, marks, calls), _marked(timeline, marks, waits)
    took, stood = (calls["end"] - calls["begin"]) / 1e9, (waits["end"] - waits["begin"]) / 1e9
    listed = []
    for number in np.unique(where).tolist():
        name, mine = timeline.names[number] if number >= 0 else BEFORE, where == number
        exposed, hidden = float(took[mine & ~late].sum()), float(took[mine & late].sum())
        listed.append(LayerCalls(name, int(mine.sum()), exposed, hidden, float(stood[waited == number].sum())))
    return sorted(listed, key=lambda layer: -layer.exposed)


def _marked(timeline: Timeline, marks: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.int64]:
    """By row: the number of the name of its rank's last mark before it; -1: there was none."""
    numbers = np.full(len(rows), -1, np.int64)
    of_mark, of_row = timeline.ranks(marks), timeline.ranks(rows)
    for rank in timeline.processes:
        mine, theirs = np.sort(marks[of_mark == rank], order="begin"), of_row == rank
        at = np.searchsorted(mine["begin"], rows["begin"][theirs], side="right") - 1
        numbers[theirs] = np.where(at >= 0, mine["name"].astype(np.int64)[at.clip(0)] if len(mine) else -1, -1)
    return numbers
