"""Where a worker begins."""

from __future__ import annotations

import numpy as np

import hocket
from hocket.training import Client, Range, serve


def test_each_worker_begins_with_a_slice_of_its_own() -> None:
    """Else all of them wait for the server of the first one."""

    def begins(comm: hocket.Communicator) -> tuple[list[int], bool]:
        tables = {"w": Range((40,), "float32", slice=40)}
        server = serve(comm, tables, on=range(comm.size), works=True, clock="async")
        with Client(server) as client:
            order = [part.number for part in client._parts[0]]
            client.push("w", np.arange(40, dtype=np.float32))
            got = client.pull("w")
        server.wait()
        return order, bool((got[1:] >= np.arange(1, 40)).all())

    rows = hocket.local_world(4).run(begins)
    assert [order for order, _ in rows] == [[1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2], [0, 1, 2, 3]]
    assert all(whole for _, whole in rows)
