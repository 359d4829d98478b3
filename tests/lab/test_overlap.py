"""The programs of lab/overlap, small: they run, and their tables are whole.  Only a quiet machine measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hocket.lab.large import factored
from hocket.lab.overlap import fused, profiles, training, tuned, units, urgent
from hocket.lab.overlap.profiles import PROFILES, model
from hocket.system.namespaces.hosts import refusal

WHY_NOT = refusal("1gbit")


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize(
    ("main", "rows", "numbers"),
    [
        (urgent.main, 2, 6), (units.main, 1, 5), (profiles.main, 1, 5), (tuned.main, 8, 3),
        pytest.param(training.main, 6, 4, marks=pytest.mark.more),  # four processes that import torch
        pytest.param(factored.main, 2, 5, marks=pytest.mark.more),
    ],
    ids=["urgent", "units", "profiles", "tuned", "training", "factored"],
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


def test_fusion_saves_most_of_a_delay(capsys: pytest.CaptureFixture[str]) -> None:
    assert fused.main(["--quick", "-n", "2"]) == 0
    delayed, shm = capsys.readouterr().out.splitlines()[-2:]
    for row, least in ((delayed, 1.5), (shm, 0.0)):
        unfused, together, gain, same = (cell.strip().removesuffix(" ms") for cell in row.strip("|").split("|")[1:])
        assert float(gain) == pytest.approx(float(unfused) / float(together), rel=0.1, abs=0.06), row  # one decimal
        assert float(gain) >= least, row
        assert same == "yes"
    assert float(delayed.split("|")[2].split()[0]) > 20, "20 tensors, 1 ms each at least"


@pytest.mark.parametrize(
    ("rho", "fifo", "p3"), [(1.0, 1.333, 1.0), (2.0, 2.333, 2.0), (0.5, 1.0, 1.0)], ids=["1", "2", "half"]
)
def test_the_model_gives_the_known_iterations(rho: float, fifo: float, p3: float) -> None:
    assert model(PROFILES["VGG-19"], rho, first=False) == pytest.approx(fifo, abs=0.001)
    assert model(PROFILES["VGG-19"], rho, first=True) == pytest.approx(p3, abs=0.001)


@pytest.mark.parametrize(
    ("first", "slices", "known"), [(False, None, 2.049), (False, 1000, 1.334), (True, None, 1.858), (True, 1000, 1.001)]
)
def test_the_model_of_a_server_gives_the_known_iterations(first: bool, slices: int | None, known: float) -> None:
    """Pushed, then pulled, both ways of the cable at once."""
    assert model(PROFILES["VGG-19"], 1.0, first, ways=2, slices=slices) == pytest.approx(known, abs=0.001)


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("name", list(PROFILES))
def test_neither_slices_nor_priorities_make_an_iteration_longer(name: str, ways: int) -> None:
    cases = [(False, None), (False, 400), (True, None), (True, 400)]
    fifo, slices, priority, both = (model(PROFILES[name], 1.0, first, ways, count) for first, count in cases)
    assert both <= min(slices, priority) + 0.003 and max(slices, priority) <= fifo + 0.003
