"""The pictures: that nothing is drawn over what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hocket.algorithms import Prediction
from hocket.bench.harness.plot import duration, plot, plot_simulated, times
from hocket.bench.harness.result import Result
from hocket.bench.harness.table import Row
from hocket.bench.harness.targets import Target
from hocket.collectives.measuring.cases import Case

pytest.importorskip("matplotlib")


@pytest.fixture
def legends(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each legend of a picture that is written: does it lie over an axis?"""
    from matplotlib.figure import Figure

    found: list[bool] = []
    save = Figure.savefig

    def look(figure: Any, *words: Any, **named: Any) -> None:
        save(figure, *words, **named)
        figure.canvas.draw()
        boxes = [axis.get_window_extent() for axis in figure.axes]
        for legend in [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())]:
            found.append(any(legend.get_window_extent().overlaps(box) for box in boxes))

    monkeypatch.setattr(Figure, "savefig", look)
    return found


@pytest.mark.parametrize(
    ("us", "words"), [(0.1, "100 ns"), (1.0, "1 µs"), (250.0, "250 µs"), (1e3, "1 ms"), (1e5, "100 ms"), (1e7, "10 s")]
)
def test_times_have_units(us: float, words: str) -> None:
    assert duration(us) == words


def test_a_simulation_has_units_and_marks_the_own_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    kept: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *words, **named: kept.append(figure))
    rows = [prediction(name, size, 1e-4 * size**2) for size in (2, 16, 1024) for name in ("ring", "tree")]
    plot_simulated(str(tmp_path / "time.png"), "allreduce", rows, rows[1::2])
    (axis,) = kept[0].axes
    kept[0].canvas.draw()
    units = {label.get_text().partition(" ")[2] for label in axis.get_yticklabels()}
    assert units == {"µs", "ms", "s"}
    (marks,) = axis.collections
    assert marks.get_label() == "hocket's choice, unmeasured"
    assert marks.get_offsets().tolist() == [[row.size, pytest.approx(row.seconds * 1e6)] for row in rows[1::2]]


def prediction(name: str, size: int, seconds: float) -> Prediction:
    return Prediction("allreduce", name, size, 8.0, seconds, 1, 1.0, "", 0.0, 1, size)


def test_legends_lie_beside_the_curves(legends: list[bool], tmp_path: Path) -> None:
    cases = [Case("allreduce", 2, count) for count in (2, 1 << 10, 1 << 20)]
    peers = {"gloo": 3e-4, "openmpi": 1e-6, "mpich": 2e-6, "impi": 1e-6}
    plot(str(tmp_path / "bench.png"), [Row(case, 1e-6, peers=peers) for case in cases])
    rows = [
        Prediction("allreduce", name, 8, n, 1e-6 * (1 + n), 1, 1.0, "", 0.0, 1, 8)
        for name in ("ring", "tree") for n in (8.0, 1024.0)
    ]  # fmt: skip
    plot_simulated(str(tmp_path / "time.png"), "allreduce", rows)
    seconds = {"hocket": 1e-6, "gloo": 3e-4, "openmpi": 2e-6}
    found = [Result(Target(ranks, nbytes), seconds, {}, "ring") for ranks in (2, 4) for nbytes in (8, 1024)]
    times(str(tmp_path / "times.png"), "a processor", found)
    assert legends == [False] * 3
