"""The pictures: that nothing is drawn over what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hocket.algorithms import Prediction
from hocket.bench.harness.result import Result
from hocket.bench.harness.table import Row
from hocket.bench.harness.targets import Target
from hocket.collectives.tuning.cases import Case

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


def test_legends_lie_beside_the_curves(legends: list[bool], tmp_path: Path) -> None:
    from hocket.bench.harness.plot import plot, plot_simulated, times

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
