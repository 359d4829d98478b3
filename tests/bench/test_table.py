"""The arithmetic of the table, and what it prints."""

import pytest

from hocket.bench.harness.table import Row, header, line, micro
from hocket.collectives.measuring.cases import COLLECTIVES, Case

FACTORS = {
    "allreduce": 1.5, "reduce": 1, "reduce_scatter": 0.75, "broadcast": 1, "allgather": 0.75, "gather": 0.75,
    "scatter": 0.75, "alltoall": 0.75, "scan": 1, "exscan": 1, "barrier": 1,
}  # fmt: skip
"""busbw / algbw on four ranks, by hand: 2(p-1)/p, (p-1)/p or 1."""


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_bandwidths(collective: str) -> None:
    row = Row(Case(collective, 4, 1000, "float64"), seconds=1e-3)
    per_caller = FACTORS[collective] == 0.75
    assert row.algbw == pytest.approx(8000 * (4 if per_caller else 1) / 1e-3 / 1e9)
    assert row.busbw == pytest.approx(row.algbw * FACTORS[collective])


def test_a_line_has_a_cell_for_every_column() -> None:
    row = Row(Case("allreduce", 4, 256), 2e-6, None, "ring", "shm", peers={"gloo": 8e-6})
    cells = line(row, ["gloo", "mpich"]).split()
    assert " ".join(cells) == "1024 256 float32 sum -1 2.00 0.51 0.77 N/A ring shm 8.00 0.25 - -"
    assert len(header(["gloo", "mpich"]).splitlines()[0].lstrip("#").split()) == len(cells)


def test_roots_and_wrong_elements_are_shown() -> None:
    cells = line(Row(Case("broadcast", 2, 4, root=1), 1.0, wrong=3), []).split()
    assert cells[3:5] == ["none", "1"] and cells[8] == "3"


def test_microseconds() -> None:
    assert [micro(s) for s in (8.7e-7, 1.5e-4, 0.0123456)] == ["0.87", "150.00", "12346"]


def test_a_record_has_all_of_it() -> None:
    row = Row(Case("allgather", 2, 8), 1e-6, 0, "ring", "tcp", {"hocket": [1e-6, 2e-6]}, {"gloo": 3e-6})
    record = row.record()
    assert (record["ranks"], record["bytes"], record["wrong"], record["transport"]) == (2, 64, 0, "tcp")
    assert record["peers_us"]["gloo"] == pytest.approx(3.0)
    assert record["blocks_us"]["hocket"] == pytest.approx([1.0, 2.0])
