"""Servers and workers that are killed: nothing is lost, and the judge sees what is."""

from __future__ import annotations

import pytest

from hocket.conformance import kills


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
