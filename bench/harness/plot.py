"""The pictures: of `hocket bench` time and bus bandwidth over size, of `hocket simulate` and `make compare` time.

They need matplotlib.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from hocket.algorithms import Prediction
from hocket.bench.harness.result import Result
from hocket.bench.harness.table import Row, bandwidth
from hocket.bench.harness.targets import Target

COLORS = {"hocket": "#c1272d", "gloo": "#0072b2", "openmpi": "#e69f00", "mpich": "#009e73", "impi": "#7a4fa3"}
LINES = ("-", "--", ":", "-.")
TIME = "time (lower is better)"
SVG: Any = {"svg.fonttype": "none", "svg.hashsalt": "hocket"}
"""matplotlib's settings for pictures in a repository: words are text, and equal pictures are equal files."""
MARKERS = {"hocket": "o", "gloo": "s", "openmpi": "^", "mpich": "v", "impi": "D"}


def plot(path: str, rows: Sequence[Row]) -> None:
    """Write the PNG."""
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    figure, (times, rates) = pyplot.subplots(1, 2, figsize=(12, 5), constrained_layout=True)
    names = ["hocket", *dict.fromkeys(name for row in rows for name in row.peers)]
    for name in names:
        seen = [(row, row.seconds if name == "hocket" else row.peers.get(name)) for row in rows]
        points = [(row.case, seconds) for row, seconds in seen if seconds]
        if name == "hocket":
            style: dict[str, Any] = {"linewidth": 2.4, "zorder": 3}
        else:
            style = {"linewidth": 1.4, "zorder": 2}
        style.update(color=COLORS.get(name), marker=MARKERS.get(name, "."), markersize=4.5, label=name)
        sizes = [case.nbytes for case, _ in points]
        times.plot(sizes, [seconds * 1e6 for _, seconds in points], **style)
        rates.plot(sizes, [bandwidth(c, s) * c.kind.factor(c.size) for c, s in points], **style)
    case = rows[0].case
    figure.suptitle(f"{case.collective} of {case.dtype} on {case.size} ranks of one machine", fontsize=13)
    _axis(times, "time of one call", TIME, duration)
    _axis(rates, "bus bandwidth", "GB/s (higher is better)")
    if len(names) > 1:
        _legend(figure, times, len(names))
    figure.savefig(path, format="png", dpi=130)
    pyplot.close(figure)


def _legend(figure: Any, axis: Any, columns: int) -> None:
    """Below the axes: a place inside that no curve crosses need not exist."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, 4), frameon=False, fontsize=9)


def _axis(axis: Any, title: str, unit: str, words: Callable[[float], str] = "{:g}".format) -> None:
    """Both scales are logarithmic; `words` are those of a value."""
    from matplotlib.ticker import FuncFormatter

    axis.set_title(title)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("size")
    axis.set_ylabel(unit)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: short(nbytes)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.grid(True, which="major", alpha=0.3)


def short(nbytes: float) -> str:
    """8 B, 64 KiB, 1 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:g} {unit}"
        nbytes /= 1024
    return f"{nbytes:g} GiB"


def duration(us: float) -> str:
    """500 ns, 1 µs, 10 ms, 2 s."""
    for unit, of_it in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if us >= 0.9999 * of_it:
            return f"{us / of_it:g} {unit}"
    return f"{us * 1e3:g} ns"


def times(path: str, processor: str, found: Sequence[Result]) -> None:
    """Write the picture of README, SVG or PNG: time of allreduce over its size, beside Gloo and the fastest MPI."""
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    plain = [r for r in found if _kind(r.target) == _kind(Target(2, 8))]
    ranks = Counter(r.target.ranks for r in plain)
    sizes = sorted(n for n in ranks if ranks[n] > 1)
    with pyplot.rc_context(SVG):
        shape: Any = {"figsize": (10, 4), "sharey": True, "squeeze": False, "layout": "constrained"}
        figure, axes = pyplot.subplots(1, max(1, len(sizes)), **shape)
        for axis, size in zip(axes[0], sizes, strict=False):
            rows = sorted((r for r in plain if r.target.ranks == size), key=lambda r: r.target.nbytes)
            for label, color, marker, seconds in _beside(rows):
                points = [(r.target.nbytes, s * 1e6) for r, s in zip(rows, seconds, strict=True) if s is not None]
                axis.plot(*zip(*points, strict=True), color=color, marker=marker, markersize=4.5, label=label)
            _axis(axis, f"{size} ranks", TIME, duration)
            axis.tick_params(axis="x", labelsize=8)
        figure.suptitle(f"allreduce of float32 in shared memory: {processor}", fontsize=12)
        _legend(figure, axes[0][0], 3)
        save(figure, path)
    pyplot.close(figure)


def save(figure: Any, path: str) -> None:
    """Write a picture, SVG or PNG.  The grid says what ticks and a frame would, of which half an SVG would be made."""
    for axis in figure.axes:
        axis.minorticks_off()
        axis.tick_params(bottom=False, left=False)
        axis.spines[["top", "right"]].set_visible(False)
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type")) if path.endswith(".svg") else None
    figure.savefig(path, dpi=130, metadata=nothing)


def _kind(target: Target) -> tuple[Any, ...]:
    """The measurement, without the number of bytes and ranks."""
    return target.collective, target.dtype, target.transport, target.buffers, target.busy, target.touch


def _beside(rows: Sequence[Result]) -> list[tuple[str, str, str, list[float | None]]]:
    """Label, color, marker and seconds of each library that was there."""
    mpis = [mpi[1] if (mpi := r.fastest_mpi) else None for r in rows]
    lines: list[tuple[str, str, str, list[float | None]]] = [
        ("hocket", COLORS["hocket"], MARKERS["hocket"], [r.ours for r in rows]),
        ("the fastest of Open MPI, MPICH and Intel MPI", COLORS["openmpi"], MARKERS["openmpi"], mpis),
        ("Gloo", COLORS["gloo"], MARKERS["gloo"], [r.seconds.get("gloo") for r in rows]),
    ]
    return [each for each in lines if any(s is not None for s in each[3])]


def plot_simulated(path: str, title: str, rows: Sequence[Prediction], chosen: Collection[Prediction] = ()) -> None:
    """Write the PNG: predicted time over ranks, or over bytes if all rows have the same number of ranks.

    `chosen`: those rows that hocket would run, unmeasured; they are marked.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display
    from matplotlib import pyplot

    over_ranks = len({row.size for row in rows}) > 1
    names = list(dict.fromkeys(row.algorithm for row in rows))
    lengths = sorted({row.nbytes for row in rows}) if over_ranks else [0.0]
    figure, axis = pyplot.subplots(figsize=(9, 6), constrained_layout=True)
    lines: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row in rows:
        line = names.index(row.algorithm), lengths.index(row.nbytes) if over_ranks else 0
        lines.setdefault(line, []).append(_place(row, over_ranks))
    for (name, length), points in sorted(lines.items()):
        label = names[name] + (f", {short(lengths[length])}" if len(lengths) > 1 else "")
        style: dict[str, Any] = {"color": f"C{name}", "linestyle": LINES[length % len(LINES)], "marker": "o"}
        axis.plot(*zip(*sorted(points), strict=True), markersize=4.5, label=label, **style)
    if chosen:
        marks = zip(*(_place(row, over_ranks) for row in chosen), strict=True)
        ring: dict[str, Any] = {"s": 130, "facecolors": "none", "edgecolors": "black", "linewidths": 1.6, "zorder": 4}
        axis.scatter(*marks, label="hocket's choice, unmeasured", **ring)
    _axis(axis, "", TIME, duration)
    figure.suptitle(title, fontsize=10, wrap=True)
    _legend(figure, axis, len(lines) + 1)
    if over_ranks:
        axis.set_xlabel("ranks")
        axis.xaxis.set_major_formatter(lambda ranks, _: f"{ranks:g}")
    figure.savefig(path, format="png", dpi=130)
    pyplot.close(figure)


def _place(row: Prediction, over_ranks: bool) -> tuple[float, float]:
    return row.size if over_ranks else row.nbytes, row.seconds * 1e6
