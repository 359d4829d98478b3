"""Latency and bandwidth between ranks as text: rows send, columns receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hocket.tools.doctor.report import Report
from hocket.tools.doctor.units import latency, rate

MOST = 16
"""Ranks; a wider table cannot be read."""
Cell = Callable[[int, int], "float | None"]


def delay(report: Report) -> Cell:
    """Seconds of a short message between two ranks; None: not measured."""

    def cell(a: int, b: int) -> float | None:
        link = report.links.get((min(a, b), max(a, b)))
        return None if link is None else link.latency

    return cell


def throughput(report: Report) -> Cell:
    """Bytes a second from one rank to another."""

    def cell(a: int, b: int) -> float | None:
        link = report.links.get((min(a, b), max(a, b)))
        return None if link is None else link.out if a < b else link.back

    return cell


def matrices(report: Report) -> Iterator[str]:
    """Both tables; of many ranks only those of the first."""
    if not report.links:
        return
    size = min(report.size, MOST)
    more = f" (the first {MOST} ranks; --plot draws all)" if size < report.size else ""
    for title, cell, show in (
        ("latency from rank (row) to rank (column)", delay(report), latency),
        ("bandwidth from rank (row) to rank (column)", throughput(report), rate),
    ):
        yield f"{title}{more}:"
        yield " " * 6 + "".join(f"{b:>11}" for b in range(size))
        for a in range(size):
            cells = (cell(a, b) for b in range(size))
            texts = ["-" if a == b else "?" if value is None else show(value) for b, value in enumerate(cells)]
            yield f"{a:>6}" + "".join(f"{text:>11}" for text in texts)
