"""The pictures of docs/compression.md and docs/less.md, drawn from those pages' tables: `python docs/pictures.py`.

Needs matplotlib.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

from hocket.bench.harness.plot import SVG, save

DOCS = pathlib.Path(__file__).parent
COLORS = ("#333333", "#888888", "#c1272d", "#e69f00", "#0072b2")


def table(first: str, page: str = "compression.md") -> list[list[str]]:
    """The rows of the page's table whose head begins with that cell; the head comes first."""
    text = (DOCS / page).read_text()
    (found,) = re.findall(rf"^\| {re.escape(first)}.*\n(?:\|.*\n)+", text, re.M)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]
    return [rows[0], *rows[2:]]


def number(cell: str) -> float:
    return float(re.split(r"[ ()]", cell)[0])


def times(path: pathlib.Path) -> None:
    """Time of one call by codec, a panel for each link: they are no points of one scale."""
    head, *rows = table("16 MiB, ms")
    rows = [row for row in reversed(rows) if row[0] != "auto"]
    figure, axes = _figure((9, 3), ncols=3, sharey=True)
    for column, axis in enumerate(axes, 1):
        ms = [number(row[column]) for row in rows]
        colors = [COLORS[1] if row[0] == "float32" else COLORS[4] for row in rows]
        bars = axis.barh([row[0] for row in rows], ms, color=colors)
        axis.bar_label(bars, [f"{t:g}" for t in ms], padding=3, fontsize=9)
        axis.set_title(head[column], fontsize=10)
        axis.set_xlim(0, 1.2 * max(ms))
        axis.grid(False, axis="y")
        axis.set_xlabel("ms (lower is better)", fontsize=9)
    figure.suptitle("allreduce of 16 MiB of float32 by codec: 2 hosts of 2 ranks by link, and one machine", fontsize=11)
    save(figure, str(path))


LEAST = 97.3
"""Accuracies below are drawn at the edge, with their number: they would press the others together."""


def accuracies(path: pathlib.Path) -> None:
    """Accuracy of each method, those that send fewer bits further down."""
    _, *rows = table("method | bits of a parameter")
    rows.sort(key=_ratio, reverse=True)
    figure, (axis,) = _figure((8, 6), ncols=1)
    names = [f"{row[0].replace('`', '')}   {_ratio(row):g}x" for row in rows]
    kinds = (2, "o", COLORS[4], "like data on all ranks"), (4, "D", COLORS[2], "other digits on each rank")
    for column, marker, color, label in kinds:
        seen = [(number(row[column]), place) for place, row in enumerate(rows) if row[column]]
        style: dict[str, Any] = {"color": color, "zorder": 3, "s": 36}
        inside = [(x, y) for x, y in seen if x >= LEAST]
        axis.scatter(*zip(*inside, strict=True), marker=marker, label=label, **style)
        for x, y in seen:
            if x < LEAST:
                axis.scatter([LEAST], [y], marker="<", **style)
                axis.annotate(f"{x:g}", (LEAST, y), (8, -3), textcoords="offset points", fontsize=9, color=color)
    exact = next(number(row[2]) for row in rows if row[0] == "float32")
    axis.axvline(exact, color=COLORS[1], linewidth=0.8, zorder=1)
    axis.set_yticks(range(len(rows)), names, fontsize=9)
    axis.set_xlim(left=LEAST - 0.03)
    axis.set_xlabel("accuracy, % (line: float32)")
    figure.suptitle("Handwritten digits, mean of 25 models, by method and how many times fewer bits it sends", size=11)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(figure, str(path))


WORST = 93.5
"""The least accuracy shown, like LEAST, in the picture of outer loops."""


def outer_accuracies(path: pathlib.Path) -> None:
    """Accuracy of each outer loop, in the order of the table."""
    _, *rows = table("method | traffic", "less.md")
    rows.reverse()
    figure, (axis,) = _figure((8, 4.5), ncols=1)
    kinds = (2, "o", COLORS[4], "like data on all ranks"), (4, "D", COLORS[2], "other digits on each rank")
    for column, marker, color, label in kinds:
        seen = [(number(row[column]), place) for place, row in enumerate(rows)]
        style: dict[str, Any] = {"color": color, "zorder": 3, "s": 36}
        inside = [(x, y) for x, y in seen if x >= WORST]
        axis.scatter(*zip(*inside, strict=True), marker=marker, label=label, **style)
        for x, y in seen:
            if x < WORST:
                axis.scatter([WORST], [y], marker="<", **style)
                axis.annotate(f"{x:g}", (WORST, y), (8, -3), textcoords="offset points", fontsize=9, color=color)
    axis.axvline(number(rows[-1][2]), color=COLORS[1], linewidth=0.8, zorder=1)
    axis.set_yticks(range(len(rows)), [f"{row[0]}   {row[1]}" for row in rows], fontsize=9)
    axis.set_xlim(left=WORST - 0.1)
    axis.set_xlabel("accuracy, % (line: an average after every step)")
    figure.suptitle("Handwritten digits by outer loop and its traffic", size=11)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(figure, str(path))


def outer_times(path: pathlib.Path) -> None:
    """Draw how many times as fast a step is, by `every`, over each link."""
    head, *rows = table("every | bytes", "less.md")
    figure, (axis,) = _figure((5, 3.5), ncols=1)
    every = [number(row[0]) for row in rows]
    for column, color in ((3, COLORS[4]), (5, COLORS[2])):
        axis.plot(every, [number(row[column]) for row in rows], marker="o", color=color, label=head[column])
    axis.plot(every, every, color=COLORS[1], linewidth=0.8, label="every")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("steps from round to round")
    axis.set_ylabel("times as fast")
    axis.legend(frameon=False, fontsize=9)
    save(figure, str(path))


def _ratio(row: list[str]) -> float:
    return number(row[1].partition("(")[2])


def _figure(size: tuple[float, float], **shape: Any) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    pyplot.rcParams.update(SVG)
    figure, axes = pyplot.subplots(figsize=size, layout="constrained", squeeze=False, **shape)
    for axis in axes[0]:
        axis.grid(True, alpha=0.3)
        axis.set_axisbelow(True)
    return figure, axes[0]


if __name__ == "__main__":
    times(DOCS / "compression-time.svg")
    accuracies(DOCS / "compression-accuracy.svg")
    outer_accuracies(DOCS / "less-accuracy.svg")
    outer_times(DOCS / "less-time.svg")
