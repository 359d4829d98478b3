"""Shapes to SVG text, or to a PNG file with matplotlib, which is imported only then."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from hocket.algorithms.drawing.picture import Arrow, Picture, Rect, Text
from hocket.errors import ArgumentError

HEAD = 8


def svg(picture: Picture) -> str:
    """One self-contained <svg> element."""
    size = f'width="{picture.width:g}" height="{picture.height:g}" viewBox="0 0 {picture.width:g} {picture.height:g}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">']
    for shape in picture.shapes:
        if isinstance(shape, Rect):
            box = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
            lines.append(f'<rect {box} fill="{shape.fill}" stroke="{shape.edge}"/>')
        elif isinstance(shape, Arrow):
            lines += _svg_arrow(shape)
        else:
            look = f'font-size="{shape.size}" text-anchor="{shape.anchor}" fill="{shape.colour}"'
            lines.append(f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" {look}>{escape(shape.text)}</text>')
    return "\n".join([*lines, "</svg>"])


def _svg_arrow(arrow: Arrow) -> list[str]:
    dash = ' stroke-dasharray="5 4"' if arrow.dashed else ""
    ends = f'x1="{arrow.x:.1f}" y1="{arrow.y:.1f}" x2="{arrow.to_x:.1f}" y2="{arrow.to_y:.1f}"'
    lines = [f'<line {ends} stroke="{arrow.colour}" stroke-width="1.6"{dash}/>']
    if arrow.head:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _head(arrow))
        lines.append(f'<polygon points="{points}" fill="{arrow.colour}"/>')
    return lines


def _head(arrow: Arrow) -> list[tuple[float, float]]:
    """The three corners of the arrow's head."""
    angle = math.atan2(arrow.to_y - arrow.y, arrow.to_x - arrow.x)
    corners = [(arrow.to_x, arrow.to_y)]
    for turn in (0.4, -0.4):
        corners.append((arrow.to_x - HEAD * math.cos(angle + turn), arrow.to_y - HEAD * math.sin(angle + turn)))
    return corners


def png(picture: Picture, path: str | os.PathLike[str]) -> None:
    """Write a PNG file; without matplotlib an ArgumentError says what to do."""
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
        patches: Any = importlib.import_module("matplotlib.patches")
        collections: Any = importlib.import_module("matplotlib.collections")
    except ImportError as missing:
        raise ArgumentError(f"saving a .png needs matplotlib ({missing}); install it, or save as .svg") from missing
    figure = figures.Figure(figsize=(picture.width / 100, picture.height / 100), dpi=200)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, picture.width), ylim=(picture.height, 0))
    axes.axis("off")
    aligned = {"start": "left", "middle": "center", "end": "right"}
    for _, some in groupby(enumerate(picture.shapes), lambda each: type(each[1])):
        alike = list(some)
        if rects := [shape for _, shape in alike if isinstance(shape, Rect)]:
            axes.add_collection(_boxes(collections, rects, alike[0][0]), autolim=False)
        for order, shape in alike:
            if isinstance(shape, Arrow):
                style = (0, (4, 3)) if shape.dashed else "-"
                look = {"color": shape.colour, "ls": style, "lw": 1.1, "zorder": order}
                axes.plot((shape.x, shape.to_x), (shape.y, shape.to_y), **look)
                if shape.head:
                    axes.add_patch(patches.Polygon(_head(shape), color=shape.colour, lw=0, zorder=order))
            elif isinstance(shape, Text):
                look = {"fontsize": shape.size * 0.72, "color": shape.colour, "ha": aligned[shape.anchor]}
                axes.text(shape.x, shape.y, shape.text, zorder=order, **look)
    figure.savefig(path, format="png")


def _boxes(collections: Any, rects: Sequence[Rect], order: int) -> Any:
    """Draw all boxes as one collection: there are thousands, and each by itself would take longer than all together."""
    corners = [
        [(r.x, r.y), (r.x + r.width, r.y), (r.x + r.width, r.y + r.height), (r.x, r.y + r.height)] for r in rects
    ]
    look = {"facecolors": [r.fill for r in rects], "edgecolors": [r.edge for r in rects], "linewidths": 0.7}
    return collections.PolyCollection(corners, zorder=order, **look)
