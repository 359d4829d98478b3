"""Servers and workers that are killed in the middle: nothing that was acknowledged is lost, nothing counts twice."""

from __future__ import annotations

import json
import pathlib
import signal
import time
from typing import Any

import pytest

from support.jobs import Job
from support.serving import ROLES, SECRET, Cluster


def exactly(said: list[Any], others: int = 0) -> None:
    """Every push counts once: that of the living, and `others` or one more of a worker that was killed."""
    done = sum(each[0] for each in said)
    for _, w, _, lost in said:
        assert lost == 0
        assert done + others <= min(w) and max(w) <= done + others + 1, (done, others, w)
        assert w[0] == w[15], "a slice"


def test_without_copies_a_loss_goes_back_to_the_snapshot() -> None:
    """Pushes after it are lost, counted, and no more than that."""
    with Cluster(2, 1, copies=0, snapshot="snapshots", every=0.1) as cluster:
        folder, deadline = pathlib.Path(cluster.path("snapshots")), time.monotonic() + 60
        while not any(int(path.suffix[1:]) > 100 for path in folder.glob("shard-0-of-2.*[0-9]")):  # not half of one
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = cluster.pushed(2)
        cluster.job.signal(0, signal.SIGKILL)
        cluster.until_pushed(range(2, 3), 10)
        done, w, _, lost = cluster.end(range(2, 3))[0]
        assert min(w) > done - before, "nothing of what was pushed before the loss is there"
        assert max(w) == done, "shard 1 has lost nothing"
        assert lost >= done - min(w), "what shard 0 has lost is counted"


def test_links_that_end_while_all_live() -> None:
    """They are made again, in the same generation, and nothing is lost or counted twice."""
    with Cluster(2, 2, copies=1) as cluster:
        cluster.until_pushed(range(2, 4), 10)
        cluster.mark("cut")
        deadline = time.monotonic() + 60
        while len([*pathlib.Path(cluster.path(".")).glob("is-cut-*[0-9]")]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        cluster.until_pushed(range(2, 4), 20)
        exactly(cluster.end(range(2, 4)))


ENDS = (
    ROLES
    + """
comm = hocket.init(elastic=True)
server = serve(comm, TABLES, on=range(3), works=True, copies=1, clock="{clock}")
with server:
    me = comm.rank
    with Client(server) as client:
        for step in range([12, 2, 12][me]):
            client.push("w", np.ones(64, np.float32))
            client.tick()
            client.pull("w")
            if me == 2 and step == 5:
                os.kill(os.getpid(), 9)
        if me == 1:
            client.close()
            try:
                Client(server)
            except hocket.ArgumentError as error:
                print("one Client" in str(error))
        else:
            print(client.clock, client.pull("w").tolist())
"""
)


@pytest.mark.parametrize("clock", ["bsp", "ssp:1"])
def test_a_worker_that_has_ended_holds_nobody_in_the_next_view(clock: str) -> None:
    """Rank 1 serves on, and works no more; rank 2 dies; rank 0 goes on, without waiting for their clocks."""
    with Job(3, ENDS.replace("{clock}", clock), env={"HOCKET_SECRET": SECRET}) as job:
        ends = job.wait(90)
    assert [end.code for end in ends[:2]] == [0, 0], [end.err for end in ends]
    reached, w = ends[0].out.split(" ", 1)
    assert reached == "12" and json.loads(w)[0] in (12 + 2 + 6, 12 + 2 + 5), w
    assert ends[1].out.split() == ["True"]
