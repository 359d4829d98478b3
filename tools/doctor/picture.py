"""Latency and bandwidth between ranks as a picture.  It needs matplotlib."""

from __future__ import annotations

import math

from hocket.tools.doctor.matrix import delay, throughput
from hocket.tools.doctor.report import Report
from hocket.tools.doctor.units import latency, rate

NUMBERS = 12
"""With at most so many ranks each cell has its number."""


def draw(path: str, report: Report) -> None:
    """Write it; the file's ending says as what (.png, .svg).  Lines divide hosts; what was not measured is grey."""
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot
    from matplotlib.colors import LogNorm

    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5.6), layout="constrained")
    order = [rank for host in report.hosts for rank in host]
    for axis, title, cell, show, colors in (
        (axes[0], "latency of a short message", delay(report), latency, "viridis_r"),
        (axes[1], "bandwidth of a stream", throughput(report), rate, "viridis"),
    ):
        rows = [[math.nan if a == b else cell(a, b) or math.nan for b in order] for a in order]
        known = [value for row in rows for value in row if not math.isnan(value)]
        axis.set_facecolor("#dddddd")
        image = axis.imshow(rows, cmap=colors, norm=LogNorm(min(known), max(known)) if known else None)
        bar = figure.colorbar(image, ax=axis, format=lambda value, _, show=show: show(value))
        bar.minorformatter = bar.formatter
        axis.set(title=title, xlabel="to rank", ylabel="from rank")
        for ticks, labels in ((axis.set_xticks, axis.set_xticklabels), (axis.set_yticks, axis.set_yticklabels)):
            step = max(1, len(order) // 16)
            ticks(range(0, len(order), step))
            labels(order[::step])
        edge = -0.5
        for host in report.hosts[:-1]:
            edge += len(host)
            axis.axhline(edge, color="white", linewidth=2)
            axis.axvline(edge, color="white", linewidth=2)
        if len(order) <= NUMBERS:
            for y, row in enumerate(rows):
                for x, value in enumerate(row):
                    if not math.isnan(value):
                        axis.text(x, y, show(value), ha="center", va="center", fontsize=7, color="#ffffff",
                                  bbox={"facecolor": "#00000088", "linewidth": 0, "pad": 1})  # fmt: skip
    figure.suptitle(f"{report.size} ranks on {', '.join(report.names[:6])}{', ...' * (len(report.names) > 6)}")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
