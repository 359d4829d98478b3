"""The page's pictures: SVG from Python, with a title and a description, and colours that a stylesheet gives."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from hocket.observe.sentences import seconds

WIDTH, ROW, LEFT, LINE = 900, 24, 150, 18
NAME = 48
"""Characters of a name that fit a phone's width."""


class Bar(NamedTuple):
    """A row: parts with a class of the stylesheet, one after the other; a striped one is told apart without colour."""

    name: str
    parts: Sequence[tuple[str, float]]


def _svg(name: str, title: str, description: str, height: int, inside: str, fits: bool = False) -> str:
    """`fits`: its lengths are parts of the window's width, and its words keep their size."""
    stripe = (
        f'<defs><pattern id="{name}-stripe" width="7" height="7" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><line class="stripe" x1="0" y1="0" x2="0" y2="7"/></pattern></defs>'
    )
    size = f'height="{height}"' if fits else f'viewBox="0 0 {WIDTH} {height}"'
    return (
        f'<svg {size} role="img" aria-labelledby="{name}-title {name}-what">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-what">{escape(description)}</desc>'
        f"{stripe}{inside}</svg>"
    )


STRIPED = ("waits", "sends")
"""Colours of the stylesheet that are striped, too."""


def bars(name: str, title: str, description: str, rows: Sequence[Bar]) -> str:
    """Horizontal ones, from 0 to the longest; above each its name and its value."""
    longest = max((sum(part for _, part in row.parts) for row in rows), default=0.0) or 1.0
    shapes = []
    for at, row in enumerate(rows):
        top, x = at * (ROW + LINE) + 4, 0.0
        whole = seconds(sum(part for _, part in row.parts))
        shapes.append(f'<text x="4" y="{top + 12}">{escape(row.name[:NAME])}: {whole}</text>')
        for kind, part in row.parts:
            wide = part / longest * 100
            if wide > 0:
                place = f'x="{x:.2f}%" y="{top + LINE}" width="{wide:.2f}%" height="{ROW - 6}"'
                shapes.append(f'<rect class="{kind}" {place}/>')
                if kind in STRIPED:
                    shapes.append(f'<rect {place} fill="url(#{name}-stripe)"/>')
            x += wide
    return _svg(name, title, description, len(rows) * (ROW + LINE) + 8, "".join(shapes), fits=True)


def matrix(name: str, title: str, description: str, ranks: Sequence[int], cells: dict[tuple[int, int], float]) -> str:
    """A square for each pair, as large as its part of the largest."""
    size, most = min(30, 640 // max(1, len(ranks))), max(cells.values(), default=0.0) or 1.0
    shapes = []
    for i, row in enumerate(ranks):
        y = 26 + i * size
        shapes.append(f'<text x="4" y="{y + size / 2 + 4:.0f}">rank {row} waited</text>' if size >= 12 else "")
        for j, column in enumerate(ranks):
            x = LEFT + j * size
            if i == 0 and size >= 12:
                shapes.append(f'<text x="{x + 3}" y="18">{column}</text>')
            shapes.append(f'<rect class="frame" x="{x}" y="{y}" width="{size}" height="{size}"/>')
            part = (cells.get((row, column), 0.0) / most) ** 0.5 * (size - 4)
            if part >= 0.5:
                a, b = x + (size - part) / 2, y + (size - part) / 2
                shapes.append(f'<rect class="waits" x="{a:.1f}" y="{b:.1f}" width="{part:.1f}" height="{part:.1f}"/>')
    words = f'<text x="4" y="18">for rank</text>{"".join(shapes)}'
    return _svg(name, title, description, 32 + len(ranks) * size, words)


def overview(name: str, title: str, description: str, rows: Sequence[tuple[str, str, Sequence[int]]]) -> str:
    """Rows of bins: (name, class, 0 to 255 each); for readers without script."""
    shapes = []
    for at, (words, kind, bins) in enumerate(rows):
        shapes.append(f'<text x="4" y="{at * 18 + 13}">{escape(words[:22])}</text>')
        wide = (WIDTH - LEFT) / max(1, len(bins))
        for i, value in enumerate(bins):
            if value >= 8:
                place = f'x="{LEFT + i * wide:.1f}" y="{at * 18}" width="{wide:.1f}" height="15"'
                shapes.append(f'<rect class="{kind}" {place} opacity="{max(0.15, value / 255):.2f}"/>')
    return _svg(name, title, description, len(rows) * 18 + 4, "".join(shapes))
