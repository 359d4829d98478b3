"""The tables of docs/server.md, in small."""

from __future__ import annotations

from hocket.bench.server import rate


def test_pushes_a_second() -> None:
    rows = rate.asked(pushes=20, workers=2, nbytes=4096)
    assert [row["what"] for row in rows] == ["hocket.training.serve", "recv from any rank"]
    assert all(row["per second"] > 0 and row["p99 us"] >= row["median us"] > 0 for row in rows)


def test_a_row_adds_up_the_workers() -> None:
    row = rate.row([[0.5, 0.5], [0.25, 0.25]])
    assert row["per second"] == 6 and row["median us"] == 375e3
