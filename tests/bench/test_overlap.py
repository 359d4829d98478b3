"""The programs of bench/overlap, small: they run, and their tables are whole.  Only a quiet machine measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hocket.bench.harness.hosts import refusal
from hocket.bench.overlap import profiles, units, urgent
from hocket.bench.overlap.profiles import PROFILES, model

WHY_NOT = refusal("1gbit")


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize(
    ("main", "rows", "numbers"), [(urgent.main, 2, 6), (units.main, 1, 5), (profiles.main, 1, 5)],
    ids=["urgent", "units", "profiles"],
)
def test_a_table(
    main: Callable[[Sequence[str]], int], rows: int, numbers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--quick", "--rates", "1gbit"]) == 0
    machine, _, head, _, *table = capsys.readouterr().out.splitlines()
    assert "cores, load" in machine and len(table) == rows
    for row in table:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == head.count("|") - 1
        found = [float(cell.replace(",", "").removesuffix(" ms")) for cell in cells[-numbers:]]
        assert all(number > 0 for number in found), row


@pytest.mark.parametrize(
    ("rho", "fifo", "p3"), [(1.0, 1.333, 1.0), (2.0, 2.333, 2.0), (0.5, 1.0, 1.0)], ids=["1", "2", "half"]
)
def test_the_model_gives_the_known_iterations(rho: float, fifo: float, p3: float) -> None:
    assert model(PROFILES["VGG-19"], rho, first=False) == pytest.approx(fifo, abs=0.001)
    assert model(PROFILES["VGG-19"], rho, first=True) == pytest.approx(p3, abs=0.001)
