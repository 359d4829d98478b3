"""The tables of docs/server.md, in small."""

from __future__ import annotations

import pytest

from hocket.bench.server import mixed, rate
from hocket.system.namespaces.hosts import refusal
from hocket.system.namespaces.switch import switch

WHY_NOT = refusal("1gbit")


def test_pushes_a_second() -> None:
    rows = rate.asked(pushes=20, workers=2, nbytes=4096)
    assert [row["what"] for row in rows] == ["hocket.training.serve", "recv from any rank"]
    assert all(row["per second"] > 0 and row["p99 us"] >= row["median us"] > 0 for row in rows)


def test_a_row_adds_up_the_workers() -> None:
    row = rate.row([[0.5, 0.5], [0.25, 0.25]])
    assert row["per second"] == 6 and row["median us"] == 375e3


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_embeddings_beside_dense_layers_between_hosts() -> None:
    sizes = mixed.Sizes(rows=2000, touched=16, dense=2048, steps=3, compute=0.01)
    with switch(mixed.HOSTS, "1gbit") as made:
        rows = mixed.asked(made.hosts, sizes)
    assert [row["what"] for row in rows] == [mixed.ALL_DENSE, mixed.SERIAL, mixed.AT_ONCE, mixed.HIDDEN]
    assert all(row["apart"] < 1e-6 for row in rows), "the weights are those of one rank"
    assert all(row["bytes"] < rows[0]["bytes"] / 3 for row in rows[1:])
    assert "of 0.0" in mixed.report(rows, sizes)[-1]
