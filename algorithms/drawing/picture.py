"""The picture of a schedule as plain shapes; `render` turns them into SVG or PNG.

Time runs to the right, one lane for each rank.  Between the steps a strip shows the chunks that a rank
holds, each in its colour, filled as high as the share of the contributions that it has gathered.  An arrow
is one message in the colour of its (first) chunk: solid if it is added on arrival, dashed if it overwrites.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Copy, Recv, Send, Step, ids
from hocket.algorithms.proof.walk import Value, start, walk

LEFT, TOP, BOTTOM = 70, 84, 44
LANE, STRIP, HEIGHT, GAP = 58, 72, 24, 120
INK, PALE = "#333333", "#dddddd"


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = "none"


class Arrow(NamedTuple):
    x: float
    y: float
    to_x: float
    to_y: float
    colour: str
    dashed: bool = False
    head: bool = True


class Text(NamedTuple):
    x: float
    y: float
    text: str
    size: int = 12
    anchor: str = "middle"
    colour: str = INK


class Picture(NamedTuple):
    width: float
    height: float
    shapes: list[Rect | Arrow | Text]


def paint(title: str, summary: str, algorithm: Algorithm, programs: Sequence[Sequence[Step]], root: int) -> Picture:
    """Place everything; the algorithm must be a correct one."""
    size, steps = len(programs), len(programs[0])
    chunks = algorithm.chunks(size)
    contract = CONTRACTS[algorithm.collective]
    width = max(LEFT + STRIP + steps * (STRIP + GAP) + 20, 7 * max(len(title), len(summary)) + 40)
    height = TOP + size * LANE + BOTTOM
    shapes: list[Rect | Arrow | Text] = [Rect(0, 0, width, height, "#ffffff")]
    shapes += [Text(20, 26, title, 16, "start"), Text(20, 46, summary, 12, "start", "#666666")]
    for rank in range(size):
        shapes.append(Text(LEFT - 10, _y(rank) + 4, f"rank {rank}", 12, "end"))
        shapes.append(Arrow(LEFT, _y(rank), _x(steps) + STRIP, _y(rank), PALE, head=False))
    held = start(contract, size, root, chunks)
    full = max(len(contract.wants(r, size, root, c) or ()) for r in range(size) for c in range(chunks)) or 1
    shapes += _strips(held, 0, chunks, full)
    for t in walk(programs, held):
        shapes.append(Text(_x(t) + STRIP + GAP / 2, TOP - 14, f"step {t}", 12, "middle", "#666666"))
        arrows = [part for rank in range(size) for part in _arrows(programs, rank, t, chunks)]
        shapes += sorted(arrows, key=lambda part: not isinstance(part, Arrow))  # no arrow crosses a label
        shapes += _strips(held, t + 1, chunks, full)
    legend = "solid arrow: added on arrival.  dashed: overwrites.  box: a chunk, as full as it has contributions."
    shapes.append(Text(20, height - 14, legend, 11, "start", "#666666"))
    return Picture(width, height, shapes)


def _x(state: int) -> float:
    return LEFT + state * (STRIP + GAP)


def _y(rank: int) -> float:
    return TOP + rank * LANE + LANE / 2


def colour(chunk: int, chunks: int) -> str:
    """Evenly spaced hues; one chunk is blue."""
    red, green, blue = colorsys.hls_to_rgb((0.6 + chunk / chunks) % 1, 0.48, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _strips(held: list[dict[int, Value]], state: int, chunks: int, full: int) -> list[Rect | Arrow | Text]:
    shapes: list[Rect | Arrow | Text] = []
    cell = STRIP / chunks
    for rank, values in enumerate(held):
        x, top = _x(state), _y(rank) - HEIGHT / 2
        shapes.append(Rect(x, top, STRIP, HEIGHT, "#ffffff", "#999999"))
        for place, value in values.items():
            if place < chunks:
                high = HEIGHT * min(len(set(value.ranks)) / full, 1)
                shapes.append(Rect(x + place * cell, top + HEIGHT - high, cell, high, colour(place, chunks)))
    return shapes


def _arrows(programs: Sequence[Sequence[Step]], rank: int, t: int, chunks: int) -> list[Rect | Arrow | Text]:
    """The messages that a rank sends in a step, each with its label on a white ground."""
    shapes: list[Rect | Arrow | Text] = []
    left, right = _x(t) + STRIP + 3, _x(t + 1) - 3
    arrivals = {peer: _arrivals(programs[peer][t], rank) for peer in range(len(programs))}
    for op in programs[rank][t]:
        if isinstance(op, Copy):
            shapes.append(Text((left + right) / 2, _y(rank) - 4, f"copy {op.source} to {op.target}", 11))
        elif isinstance(op, Send):
            adds = next(arrivals[op.peer])
            tint = colour(ids(op.chunks)[0] % chunks, chunks)
            y, to_y = _y(rank), _y(op.peer)
            shapes.append(Arrow(left, y, right, to_y, tint, dashed=not adds))
            text = spans(ids(op.chunks))
            wide = 7 * len(text)
            part = min((16 + wide / 2) / math.hypot(right - left, to_y - y), 0.5)  # near its sender
            x, at = left + (right - left) * part, y + (to_y - y) * part
            shapes.append(Rect(x - wide / 2, at - 6, wide, 12, "#ffffff"))
            shapes.append(Text(x, at + 4, text, 11, "middle", tint))
    return shapes


def _arrivals(step: Step, source: int) -> Iterator[bool]:
    """For each message from `source` in turn: is it added on arrival?"""
    return (op.reduce for op in step if isinstance(op, Recv) and op.peer == source)


def spans(chunks: Sequence[int]) -> str:
    """0-3,7 for 0 1 2 3 7, in the order given."""
    runs: list[list[int]] = []
    for chunk in chunks:
        if runs and chunk == runs[-1][1] + 1:
            runs[-1][1] = chunk
        else:
            runs.append([chunk, chunk])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
