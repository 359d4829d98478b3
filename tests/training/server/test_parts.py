"""Where a worker begins, and how far it may run ahead."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

import hocket
from hocket.training import SGD, Client, Layers, Range, serve
from support.worlds import same, spread


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


def runs_ahead(comm: hocket.Communicator) -> None:
    """More slices than may be asked for at once wait for a late worker when the next step is given."""
    tables = {"w": Range(200, slice=4), "b": Range(3)}
    if comm.rank == 0:
        with serve(comm, tables, on=[0], works=True) as server, Client(server) as client:
            comm.barrier()
            client.tick()
            client.tick()
        return
    with Client(comm, tables) as client:
        layers = Layers(client, {name: np.zeros(table.shape, np.float32) for name, table in tables.items()})
        for _ in range(2):
            layers.ready("w", np.ones(200))
            layers.ready("b", np.ones(3))
            layers.end()
        comm.barrier()
        for name, table in tables.items():
            same(layers.wait(name), np.full(table.shape, 2, np.float32), f"{name}, both pushes")


def test_a_layer_may_be_given_again_before_it_is_waited_for() -> None:
    spread(runs_ahead, 2, "threads")


def ends_by_itself(comm: hocket.Communicator) -> None:
    """The client's own tick() waits for a slice that has begun to go out."""
    tables = {"w": Range(3, optimizer=SGD(1.0), mean=True)}
    with serve(comm, tables, on=[0], works=True) as server, Client(server) as client:
        layers, begun, start = Layers(client, {"w": np.zeros(3, np.float32)}), threading.Event(), client.start_push

        def slow(*words: Any) -> None:
            begun.set()
            time.sleep(0.1)
            start(*words)

        client.start_push = slow  # type: ignore[method-assign]
        layers.ready("w", np.ones(3))
        assert begun.wait(10)
        client.tick()
        same(client.pull("w"), np.full(3, -1, np.float32), "pushed in this clock")
        layers.wait("w")


def test_a_clock_does_not_overtake_a_push() -> None:
    spread(ends_by_itself, 1, "threads")
