"""The timeline of the page: how much of each bin of time is covered, and the longest slices as they are."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.observe.page.pictures import STRIPED
from hocket.observe.timeline import Group, Timeline

GROUPS: dict[str, str] = {
    Group.CALLS: "calls", Group.WAITS: "waits", Group.ROOM: "waits", Group.SENDS: "sends", Group.RECEIVES: "receives",
    Group.KERNELS: "kernels", Group.NO_CORE: "other", Group.MARKS: "other", Group.SPANS: "other",
}  # fmt: skip
"""Groups that are drawn, and their colours."""
ROOM = 360_000
"""Bytes of all bins together; base64 makes a third more of them."""
MOST_BINS, MOST_ROWS, MOST_EXACT = 8192, 256, 3000
LONGEST_NAME = 80


@dataclass(frozen=True)
class Binned:
    rows: list[tuple[str, str]]
    """(name, group)"""
    bins: NDArray[np.uint8]
    """A row of them for each."""
    end: int
    """ns"""
    exact: NDArray[np.float64]
    """(row, begin, end, name), of the longest slices."""
    names: list[str]
    left_out: int
    """Rows for which there is no room."""

    def data(self) -> dict[str, Any]:
        """For the script."""
        colours = [(name, GROUPS[group]) for name, group in self.rows]
        rows = [{"name": name, "colour": colour, "striped": colour in STRIPED} for name, colour in colours]
        return {
            "rows": rows, "count": self.bins.shape[1], "end": self.end, "names": self.names,
            "bins": base64.b64encode(self.bins.tobytes()).decode(),
            "exact": base64.b64encode(self.exact.astype("<f8").tobytes()).decode(),
        }  # fmt: skip

    def coarse(self, count: int) -> NDArray[np.uint8]:
        """Fewer bins: the mean of what lies in each."""
        edges = np.linspace(0, self.bins.shape[1], count + 1).astype(int)[:-1]
        sums = np.add.reduceat(self.bins.astype(np.int64), np.unique(edges), axis=1)
        means: NDArray[np.uint8] = (sums * count // self.bins.shape[1]).clip(0, 255).astype(np.uint8)
        return means


def binned(timeline: Timeline) -> Binned:
    """Cost: 1 us a slice."""
    keys: dict[tuple[int, str], list[int]] = {}
    for at, track in enumerate(timeline.tracks):
        if track.group in GROUPS and not track.counter:
            keys.setdefault((track.process, track.group), []).append(at)
    order = sorted(keys, key=lambda key: (key[0], list(GROUPS).index(key[1])))
    kept = order[:MOST_ROWS]
    row_of = np.full(len(timeline.tracks) + 1, -1)
    for row, key in enumerate(kept):
        row_of[keys[key]] = row
    rows = row_of[timeline.slices["track"]] if len(timeline.tracks) else np.empty(0, int)
    mine, rows = timeline.slices[rows >= 0], rows[rows >= 0]
    end = max(1, int(mine["end"].max()) if len(mine) else 1)
    count = max(16, min(MOST_BINS, ROOM // max(1, len(kept))))
    covered = _covered(mine, rows, len(kept), count, end)
    longest = np.argsort(mine["begin"] - mine["end"], kind="stable")[:MOST_EXACT]
    wanted, numbers = np.unique(mine["name"][longest], return_inverse=True)
    exact = np.stack([rows[longest], mine["begin"][longest], mine["end"][longest], numbers], axis=1)
    names = [timeline.names[number][:LONGEST_NAME] for number in wanted.tolist()]
    titles = [(f"rank {rank} {group}", group) for rank, group in kept]
    return Binned(titles, covered, end, exact.astype(np.float64).reshape(-1, 4), names, len(order) - len(kept))


def _covered(slices: NDArray[Any], rows: NDArray[Any], height: int, count: int, end: int) -> NDArray[np.uint8]:
    """The part of each bin that slices cover, 0 to 255: their ends are spread over two bins, and what lies between is
    summed up."""
    steps = np.zeros((height, count + 2))
    for field, sign in (("begin", 1.0), ("end", -1.0)):
        at = slices[field] * (count / end)
        cell = np.minimum(at.astype(np.int64), count - 1)
        part = (cell + 1 - at).clip(0, 1)
        np.add.at(steps, (rows, cell), sign * part)
        np.add.at(steps, (rows, cell + 1), sign * (1 - part))
    covered: NDArray[np.uint8] = np.ceil(np.cumsum(steps, axis=1)[:, :count].clip(0, 1) * 255 - 1e-6).astype(np.uint8)
    return covered
