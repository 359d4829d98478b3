"""The picture of a schedule as plain shapes; `render` turns them into SVG or PNG.

Time runs to the right, one lane for each rank.  Between the steps a strip shows the chunks that a rank
holds, each in its colour, filled as high as the share of the contributions that it has gathered.  An arrow
is one message in the colour of its (first) chunk: solid if it is added on arrival, dashed if it overwrites.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hocket.algorithms.drawing.excerpt import GAP, HEIGHT, LEFT, Excerpt, excerpt, spans
from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.algorithms.language.schedule import Copy, Recv, Send, Step, ids
from hocket.algorithms.proof.walk import Value, start, walk

INK, PALE, GREY, RED = "#333333", "#dddddd", "#666666", "#c1272d"
LABEL, THIN = 12, 2
"""The most characters of a label, and the least height of what a rank holds."""


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


class DrawnMessage(NamedTuple):
    source: int
    target: int
    chunks: tuple[int, ...]
    adds: bool


def paint(title: str, summary: str, algorithm: Algorithm, programs: Sequence[Sequence[Step]], root: int) -> Picture:
    """Place everything; the algorithm must be a correct one."""
    size, chunks = len(programs), algorithm.chunks(len(programs))
    contract = CONTRACTS[algorithm.collective]
    drawn = excerpt(programs, root, chunks)
    width = max(drawn.width + 20, 7 * max(len(title), len(summary), len(drawn.note)) + 40)
    shapes: list[Rect | Arrow | Text] = [Rect(0, 0, width, drawn.height, "#ffffff")]
    shapes += [Text(20, 26, title, 16, "start"), Text(20, 46, summary, 12, "start", GREY)]
    shapes += [Text(20, 66, drawn.note, 12, "start", RED)] if drawn.note else []
    names = [*(f"rank {rank}" for rank in drawn.ranks), *(["others"] if drawn.others else [])]
    for lane, name in enumerate(names):
        shapes.append(Text(LEFT - 10, drawn.y(lane) + 4, name, 12, "end"))
        shapes.append(Arrow(LEFT, drawn.y(lane), drawn.width, drawn.y(lane), PALE, head=False))
    held = start(contract, size, root, chunks)
    full = max(len(contract.wants(r, size, root, c) or ()) for r in range(size) for c in range(chunks)) or 1
    shapes += _strips(drawn, held, 0, full)
    for t in walk([steps[: drawn.steps] for steps in programs], held):
        shapes.append(Text(drawn.x(t) + drawn.strip + GAP / 2, drawn.top - 14, f"step {t}", 12, "middle", GREY))
        arrows = [*_arrows(drawn, programs, t), *_copies(drawn, programs, t)]
        shapes += sorted(arrows, key=lambda shape: not isinstance(shape, Arrow))  # no arrow crosses a label
        shapes += _strips(drawn, held, t + 1, full)
    legend = "solid arrow: added on arrival.  dashed: overwrites.  box: a chunk, as full as it has contributions."
    legend += "  3x: 3 messages." if drawn.others else ""
    shapes.append(Text(20, drawn.height - 14, legend, 11, "start", GREY))
    return Picture(width, drawn.height, shapes)


def _strips(drawn: Excerpt, held: list[dict[int, Value]], state: int, full: int) -> list[Rect | Arrow | Text]:
    shapes: list[Rect | Arrow | Text] = []
    cell, x = drawn.strip / len(drawn.chunks), drawn.x(state)
    for lane, rank in enumerate(drawn.ranks):
        top = drawn.y(lane) - HEIGHT / 2
        shapes.append(Rect(x, top, drawn.strip, HEIGHT, "#ffffff", "#999999"))
        for place, chunk in enumerate(drawn.chunks):
            if chunk in held[rank]:
                high = max(THIN, HEIGHT * min(len(set(held[rank][chunk].ranks)) / full, 1))
                shapes.append(Rect(x + place * cell, top + HEIGHT - high, cell, high, drawn.colour(chunk)))
    return shapes


def _arrows(drawn: Excerpt, programs: Sequence[Sequence[Step]], t: int) -> Iterator[Rect | Arrow | Text]:
    """The messages of a step, each with its label on a white ground; those from or to the other ranks are one."""
    left, right = drawn.x(t) + drawn.strip + 3, drawn.x(t + 1) - 3
    alike: dict[tuple[object, ...], list[DrawnMessage]] = defaultdict(list)
    for number, message in enumerate(_messages(programs, t)):
        lanes = drawn.lane(message.source), drawn.lane(message.target)
        others = len(drawn.ranks) in lanes
        if min(lanes) < len(drawn.ranks):
            alike[lanes, message.adds, None if others else number].append(message)
    for (first, *more) in alike.values():
        tint = drawn.colour(first.chunks[0])
        y, to_y = (drawn.y(drawn.lane(rank)) for rank in first[:2])
        yield Arrow(left, y, right, to_y, tint, dashed=not first.adds)
        text = f"{len(more) + 1}x" if more else _label(first.chunks)
        wide = 7 * len(text)
        near = (16 + wide / 2) / math.hypot(right - left, to_y - y)  # to its sender, but not over its box
        along = min(max(near, wide / 2 / (right - left)), 0.5)
        x, at = left + (right - left) * along, y + (to_y - y) * along
        yield Rect(x - wide / 2, at - 6, wide, 12, "#ffffff")
        yield Text(x, at + 4, text, 11, "middle", tint)


def _messages(programs: Sequence[Sequence[Step]], t: int) -> Iterator[DrawnMessage]:
    """Every message of a step.  Between two ranks they arrive in the order in which they are sent."""
    adds: dict[tuple[int, int], list[bool]] = defaultdict(list)
    for rank, steps in enumerate(programs):
        for op in steps[t]:
            if isinstance(op, Recv):
                adds[op.peer, rank].append(op.reduce)
    for rank, steps in enumerate(programs):
        for op in steps[t]:
            if isinstance(op, Send):
                yield DrawnMessage(rank, op.peer, tuple(ids(op.chunks)), adds[rank, op.peer].pop(0))


def _copies(drawn: Excerpt, programs: Sequence[Sequence[Step]], t: int) -> Iterator[Text]:
    middle = drawn.x(t) + drawn.strip + GAP / 2
    for lane, rank in enumerate(drawn.ranks):
        for op in programs[rank][t]:
            if isinstance(op, Copy):
                yield Text(middle, drawn.y(lane) - 4, f"copy {op.source} to {op.target}", 11)


def _label(chunks: Sequence[int]) -> str:
    """The text on a message: its chunks, or how many they are."""
    text = spans(chunks)
    return text if len(text) <= LABEL else f"{len(chunks)} chunks"
