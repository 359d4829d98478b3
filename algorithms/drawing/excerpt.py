"""Which part of a schedule is drawn, and where its ranks, steps and chunks lie.

Of a large schedule a part is drawn, which says so: more would be hairlines, and megabytes in a notebook.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from typing import NamedTuple

from hocket.algorithms.language.schedule import Step

LEFT, TOP, BOTTOM = 70, 84, 44
LANE, STRIP, HEIGHT, GAP = 58, 72, 24, 120
CELL = 6
"""The least width of a chunk."""
MOST_RANKS, FEW_RANKS, MOST_STEPS, MOST_CHUNKS = 16, 8, 14, 25
"""The limits of a drawing: as much as can be told apart."""
MOST_CELLS = 128
"""Ranks times steps: what fits a screen in letters that can be read."""
MOST_MESSAGES = 4
"""For each rank in a step; where there are more, FEW_RANKS are drawn."""


class Excerpt(NamedTuple):
    """The ranks and steps of a schedule that are drawn.  The last lane is all other ranks together."""

    ranks: tuple[int, ...]
    others: int
    """The number of ranks that are not drawn."""
    steps: int
    chunks: tuple[int, ...]
    note: str
    """Words for the rest that is left out; "": nothing."""

    @property
    def strip(self) -> float:
        return max(STRIP, CELL * len(self.chunks))

    @property
    def top(self) -> float:
        return TOP + (20 if self.note else 0)

    @property
    def width(self) -> float:
        return self.x(self.steps) + self.strip

    @property
    def height(self) -> float:
        return self.top + LANE * (len(self.ranks) + (self.others > 0)) + BOTTOM

    def x(self, state: int) -> float:
        """The left edge, in pixels, of the strips that show what ranks hold after `state` steps."""
        return LEFT + state * (self.strip + GAP)

    def lane(self, rank: int) -> int:
        return self.ranks.index(rank) if rank in self.ranks else len(self.ranks)

    def y(self, lane: int) -> float:
        return self.top + lane * LANE + LANE / 2

    def colour(self, chunk: int) -> str:
        return colour(chunk, len(self.chunks))


def excerpt(programs: Sequence[Sequence[Step]], root: int, chunks: int) -> Excerpt:
    """The first ranks and the root, the first steps, the first chunks (of all pairs: those of the first ranks)."""
    size, steps = len(programs), len(programs[0])
    few = min(size, MOST_RANKS)
    most = max((sum(map(len, each)) for each in zip(*programs, strict=True)), default=0)  # a message is two ops
    if most > 2 * MOST_MESSAGES * size:
        few = min(size, FEW_RANKS)
    ranks = tuple(range(few)) if root < few else (*range(few - 1), root)
    drawn = min(steps, MOST_STEPS, MOST_CELLS // few)
    held = tuple(range(min(chunks, MOST_CHUNKS)))
    if len(held) < chunks == size * size:
        near = range(math.isqrt(MOST_CHUNKS))
        held = tuple(source * size + target for source in near for target in near)
    left_out = [
        f"{what} {spans(shown)} of {total}"
        for what, shown, total in (("ranks", ranks, size), ("steps", range(drawn), steps), ("chunks", held, chunks))
        if len(shown) < total
    ]
    note = f"This is a part: {', '.join(left_out)}.  The text (print) is whole." if left_out else ""
    return Excerpt(ranks, size - few, drawn, held, note)


def colour(chunk: int, chunks: int) -> str:
    """Evenly spaced hues; one chunk is blue."""
    red, green, blue = colorsys.hls_to_rgb((0.6 + chunk / chunks) % 1, 0.48, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def spans(chunks: Sequence[int]) -> str:
    """0-3,7 for 0 1 2 3 7, in the order given."""
    runs: list[list[int]] = []
    for chunk in chunks:
        if runs and chunk == runs[-1][1] + 1:
            runs[-1][1] = chunk
        else:
            runs.append([chunk, chunk])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
