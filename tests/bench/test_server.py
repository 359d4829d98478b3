"""The tables of docs/server.md, in small."""

from __future__ import annotations

import pytest

from hocket.bench.server import kills, rate


def test_pushes_a_second() -> None:
    rows = rate.asked(pushes=20, workers=2, nbytes=4096)
    assert [row["what"] for row in rows] == ["hocket.training.serve", "recv from any rank"]
    assert all(row["per second"] > 0 and row["p99 us"] >= row["median us"] > 0 for row in rows)


def test_a_row_adds_up_the_workers() -> None:
    row = rate.row([[0.5, 0.5], [0.25, 0.25]])
    assert row["per second"] == 6 and row["median us"] == 375e3


def test_nothing_is_lost_where_servers_and_workers_are_killed() -> None:
    acknowledged, done = kills.run(pushes=60, kills=3, seed=5)
    assert acknowledged >= 60 and sum(1 + (each.who == "server and worker") for each in done) >= 3
    assert all(each.seconds < 30 for each in done)
    assert f"{acknowledged} pushes acknowledged" in kills.table(acknowledged, done)


def test_the_judge_of_kills() -> None:
    kills.wrong(7, [[3, 6], [4, 10]], done=3, begun=4)
    for rows in ([[2, 3]], [[4, 11]], [[3, 7]], [[5, 15]]):
        with pytest.raises(kills.Trouble, match="row 0 of worker 7 has"):
            kills.wrong(7, rows, done=3, begun=4)  # lost, counted twice, another instead, one too many
