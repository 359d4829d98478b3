"""Servers and workers are seen where ranks are seen: in `hocket top`, in metrics, and in a trace."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from hocket.collectives.communicator.communicator import Communicator
from hocket.observe.files.reading import read
from hocket.observe.metrics.families import MetricsReader
from hocket.tools import top
from hocket.training import Client, Range, serve
from support.worlds import spread

TRACE = "SERVER_TRACE"


def marks(comm: Communicator) -> dict[str, float]:
    """The metrics of this rank's marks."""
    return {mark: value for (_, mark), value in MetricsReader([comm]).read()["hocket_mark"].items()}


def counts(comm: Communicator) -> None:
    with serve(comm, {"w": Range(4, slice=16)}, on=range(comm.size), clock="async", works=True) as server:
        with Client(server) as client:
            for _ in range(3):
                client.push("w", np.ones(4))
                client.pull("w")
                client.tick()
        assert marks(comm)["client: clock"] == 3 and marks(comm)["server: generation"] == 0
        comm.barrier()
    found = marks(comm)
    assert found["server: shards"] == 1 and found["server: workers"] <= comm.size
    if comm.rank == 0:  # the only slice; 3 pushes, 4 clocks and a farewell of each worker
        assert found["server: pulls"] == 3 * comm.size and found["server: changes"] == 8 * comm.size, found
        rows = [row for job in top.look().jobs.values() for row in job if "client: clock" in row.marks]
        assert any(row.marks.get("server: pulls") == 3 * comm.size for row in rows), rows
    comm.barrier()


def test_counts_by_name() -> None:
    spread(counts, 2, "shm")


def traced(comm: Communicator) -> None:
    with serve(comm, {"w": Range(4)}, on=range(comm.size), works=True) as server, Client(server) as client:
        with comm.trace(os.environ[TRACE]):
            client.push("w", np.ones(4))
            if comm.rank == 1:
                time.sleep(0.05)
            client.tick()
            client.pull("w")  # rank 0 waits for rank 1's clock
        comm.barrier()


def test_a_trace_shows_waits(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    spread(traced, 2, "shm", **{TRACE: str(path)})
    assert '"pull w"' in path.read_text() and read(path)
