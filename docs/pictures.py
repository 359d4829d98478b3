"""The pictures of docs/compression.md, drawn from the tables of that page: `python docs/pictures.py`.

Needs matplotlib.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

DOCS = pathlib.Path(__file__).parent
PAGE = "compression.md"
COLORS = ("#333333", "#888888", "#c1272d", "#e69f00", "#0072b2")


def table(first: str) -> list[list[str]]:
    """The rows of the page's table whose head begins with that cell; the head comes first."""
    text = (DOCS / PAGE).read_text()
    (found,) = re.findall(rf"^\| {re.escape(first)}.*\n(?:\|.*\n)+", text, re.M)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]
    return [rows[0], *rows[2:]]


def number(cell: str) -> float:
    return float(re.split(r"[ ()]", cell)[0])


def times(path: pathlib.Path) -> None:
    """Time of one call over the speed of the link, by codec."""
    head, *rows = table("16 MiB, ms")
    figure, axis = _figure()
    for color, row in zip(COLORS, (row for row in rows if row[0] != "auto"), strict=True):
        axis.plot(head[1:4], [number(cell) for cell in row[1:4]], color=color, marker="o", label=row[0])
    axis.set_yscale("log")
    axis.set_ylabel("ms (lower is better)")
    axis.set_title("allreduce of 16 MiB of float32, 2 hosts of 2 ranks, by link")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.legend(frameon=False, fontsize=9)
    _save(figure, path)


def accuracies(path: pathlib.Path) -> None:
    """Accuracy over how many times fewer bits are sent; methods that stand apart are named."""
    _, *rows = table("method | bits of a parameter")
    figure, axis = _figure()
    for column, color, label in ((2, COLORS[4], "like data on all ranks"), (4, COLORS[2], "other digits on each rank")):
        seen = [(number(row[1].partition("(")[2]), number(row[column]), row[0]) for row in rows if row[column]]
        axis.scatter([x for x, _, _ in seen], [y for _, y, _ in seen], color=color, label=label, zorder=3)
        for x, y, name in seen:
            if y < 97.8 or x > 100:
                named: Any = {"textcoords": "offset points", "ha": "right", "fontsize": 8}
                axis.annotate(name.replace("`", ""), (x, y), (-6, -4), **named)
    axis.axhline(number(rows[0][2]), color=COLORS[1], linewidth=0.8, zorder=1)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axis.set_xlabel("fewer bits on the wire")
    axis.set_ylabel("accuracy, %")
    axis.set_title("Handwritten digits, mean of 25 models")
    axis.legend(frameon=False, fontsize=9, loc="lower left")
    _save(figure, path)


def _figure() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "hocket"})
    figure, axis = pyplot.subplots(figsize=(8, 4), layout="constrained")
    axis.grid(True, alpha=0.3)
    return figure, axis


def _save(figure: Any, path: pathlib.Path) -> None:
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    times(DOCS / "compression-time.svg")
    accuracies(DOCS / "compression-accuracy.svg")
