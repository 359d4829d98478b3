"""Servers and workers that push and pull, in threads and in processes: values, clocks, and what is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import SGD, Client, Range, Rows, Server, serve
from support.worlds import same, spread

ONES = np.ones((5, 7), np.float32)


def tables() -> dict[str, Range | Rows]:
    return {"w": Range((5, 7), slice=48), "e": Rows(3, optimizer=SGD(1.0), rows=1000, seed=4)}


def adds_and_reads(comm: Communicator) -> None:
    """BSP: after a tick each sees what all have pushed, exactly; also with slices on several servers."""
    servers = 2 if comm.size > 3 else 1
    if comm.rank < servers:
        server = serve(comm, tables(), on=range(servers))
        assert server.wait(60)
        return
    workers = comm.size - servers
    with Client(comm, tables()) as client:
        began = Rows(3, seed=4).began(np.array([3, 999, 4]))
        same(client.pull("e", rows=[999])[0], began[1], "a row that nobody has pushed to")
        for clock in range(1, 4):
            client.push("w", ONES)
            client.push("e", np.full((3, 3), 0.5, np.float32), rows=[3, 4, 3])
            assert client.tick() == clock
            seen = client.pull("w")  # others may have pushed in the next clock already
            assert (seen >= workers * clock).all() and (seen <= workers * (clock + 1)).all(), (clock, seen)
        client.tick()
        same(client.pull("w"), 3.0 * workers * ONES, "after the last clock")
        rows = client.pull("e", rows=[3, 999, 4])
        assert np.allclose(rows, began - 3 * workers * np.array([[1.0], [0], [0.5]])), rows


@pytest.mark.parametrize(("size", "transport"), [(2, "threads"), (5, "threads"), (3, "shm"), (3, "tcp")])
def test_pushes_are_added_up(size: int, transport: str) -> None:
    spread(adds_and_reads, size, transport)


def of_no_axis(comm: Communicator) -> None:
    """A table of one number is pushed and pulled as an array of shape ()."""
    server = serve(comm, {"n": Range(())}, on=range(comm.size), clock="async", works=True)
    with server, Client(server) as client:
        assert client.push_pull("n", np.float32(2.5)).shape == ()
        client.push("n", 1.5)
        client.push("n", np.array(1.0, np.float32))
        comm.barrier()
        assert client.pull("n") == 5.0 * comm.size
        comm.barrier()


def in_one_process(comm: Communicator) -> None:
    """Every rank serves a part, and works."""
    server = serve(comm, tables(), on=range(comm.size), clock="async", works=True)
    with server, Client(server) as client:
        handles = [client.push_pull("w", ONES, async_op=True) for _ in range(3)]
        last = [handle.wait() for handle in handles][-1]
        assert last.min() >= 3 and last.max() <= 3 * comm.size
        comm.barrier()
        same(client.pull("w"), 3.0 * comm.size * ONES, "after the barrier")
        comm.barrier()
        time.sleep(0.05 * comm.rank)
        client.push("w", ONES)  # the others may be at their block's end already


def test_ranks_that_serve_and_work() -> None:
    spread([in_one_process, of_no_axis], 3, "threads")


def refuses(comm: Communicator) -> None:
    """To the sender alone: nothing changes, and everybody goes on."""
    if comm.rank == 0:
        assert serve(comm, tables(), on=[0], clock="async").wait(60)
        return
    with Client(comm, tables()) as client:
        if comm.rank == 1:
            bad = ONES.copy()
            bad[2, 3] = np.nan
            with pytest.raises(hocket.ArgumentError, match="not finite"):
                client.push("w", bad)
            with pytest.raises(hocket.ArgumentError, match="key 1000 is unknown"):
                client.pull("e", rows=[1, 1000])
            with pytest.raises(hocket.ArgumentError, match="key -1 is unknown"):
                client.push("e", np.ones((1, 3)), rows=[-1])
            with pytest.raises(hocket.ArgumentError, match=r"shape \(5, 7\), got \(5,\)"):
                client.push("w", np.ones(5))
            with pytest.raises(hocket.ArgumentError, match="'v' is not a table"):
                client.pull("v")
        client.push("e", np.ones((1, 3)), rows=[7])
        assert np.isfinite(client.pull("w")).all()


def test_what_is_refused() -> None:
    spread(refuses, 3, "threads")


def closes_too_early(comm: Communicator) -> None:
    if comm.rank == 0:
        server = serve(comm, tables(), on=[0])
        comm.barrier()
        server.close()
        return
    with pytest.raises(hocket.PeerLostError, match="rank 1: Client: a server has ended"):  # noqa: SIM117
        with Client(comm, tables()) as client:
            comm.barrier()
            for _ in range(1000):
                client.pull("w")


def test_a_server_that_closes_before_its_workers() -> None:
    spread(closes_too_early, 2, "shm")


def leaves_in_the_middle(comm: Communicator) -> None:
    """Its error is raised at once, and the server hears of it: it waits for this worker no longer."""
    if comm.rank == 0:
        assert serve(comm, tables(), on=[0]).wait(8)
        return
    with pytest.raises(ZeroDivisionError), Client(comm, tables()) as client:
        client.push("w", ONES)
        if comm.rank == 1:
            _ = 1 / 0
        while client.pull("w").sum() < ONES.size:
            client.tick()
        _ = 1 / 0


@pytest.mark.parametrize("transport", ["threads", "shm"])
def test_a_worker_that_leaves_with_an_error(transport: str) -> None:
    spread(leaves_in_the_middle, 3, transport)


def differ(comm: Communicator) -> None:
    with pytest.raises(hocket.MismatchError, match="tables differ"):
        if comm.rank == 0:
            serve(comm, {"w": Range(3)}, on=[0])
        else:
            Client(comm, {"w": Range(4)})


def test_tables_that_differ() -> None:
    spread(differ, 2, "threads")


def test_wrong_arguments() -> None:
    with hocket.local_world(1) as world:

        def wrong(comm: Communicator) -> None:
            with pytest.raises(hocket.ArgumentError, match=r"only these ranks call serve\(on=\[1\]\)"):
                serve(comm, tables(), on=[1])
            with pytest.raises(hocket.ArgumentError, match='must be "bsp"'):
                serve(comm, tables(), on=[0], clock="ssp")
            with pytest.raises(hocket.ArgumentError, match="elastic=True"):
                serve(comm, tables(), on=[0], copies=1)
            with pytest.raises(hocket.ArgumentError, match="copies=2"):
                serve(comm, tables(), on=[0], copies=2)
            for given in ({}, {"w": 3}, {3: Range(2)}):
                with pytest.raises(hocket.ArgumentError, match="table"):
                    serve(comm, given, on=[0])

        world.run(wrong)


def test_users_see_what_is_theirs() -> None:
    assert {name for name in vars(Server) if name[0] != "_"} == {"close", "snapshot", "view", "wait", "whole"}
