"""Servers and workers that push and pull, in threads and in processes: values, clocks, and what is refused."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.training import SGD, Client, Range, Rows, Server, serve
from support.cases import more
from support.jobs import Job
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


@pytest.mark.parametrize(("size", "transport"), [(2, "threads"), (5, "threads"), (3, "tcp"), *more((3, "shm"))])
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
        client.close()
        with Client(server) as again:  # the numbers of its pushes go on
            again.push("w", ONES)
            comm.barrier()
            same(again.pull("w"), 4.0 * comm.size * ONES, "of another client of this server")
            comm.barrier()
            time.sleep(0.05 * comm.rank)
            again.push("w", ONES)  # the others may be at their block's end already


def test_ranks_that_serve_and_work() -> None:
    spread([in_one_process, of_no_axis], 3, "threads")


PARTS: dict[str, Range | Rows] = {
    "w": Range(8, slice=8), "e": Rows(1, rows=90), "d": Range(2, "float64"), "free": Rows(1)
}  # fmt: skip


def changes_nothing(comm: Communicator) -> None:
    """A refused push changes no slice, no row of any server, nothing of what a codec has left."""
    for codec in (None, "int8"):
        with serve(comm, PARTS, on=range(comm.size), works=True) as server, Client(server, codec=codec) as client:
            if comm.rank:
                continue
            keys, w = np.arange(90), np.linspace(0.1, 1, 8)
            client.push("w", w)
            before, rows = client.pull("w"), client.pull("e", rows=keys)
            one_bad = np.ones((90, 1))
            one_bad[77] = np.inf
            wrong: list[tuple[str, Any, Any, str]] = [
                ("w", [1, 1, 1, 1, 1, 1, 1, np.nan], None, "'w': a value that was pushed is not finite in float32"),
                ("w", np.full(8, 1e300), None, "not finite in float32"),
                ("w", np.ones(7), None, r"shape \(8,\), got \(7,\)"),
                ("w", np.ones(8) * 1j, None, "complex128, and a table holds float32: push x.real"),
                ("w", ["a"] * 8, None, "not numbers"),
                ("w", np.ones(8), keys[:8], "rows= is for tables of Rows"),
                ("e", np.ones((90, 1)), keys + 1, "key 90 is unknown: keys are 0 to 89"),
                ("e", np.ones((90, 1)), keys - 1, "key -1 is unknown"),
                ("e", np.ones((2, 1)), np.array([3, 2**63 + 5], np.uint64), "key 9223372036854775813 is unknown"),
                ("e", one_bad, keys, "not finite"),
                ("e", np.ones((89, 1)), keys, r"shape \(90, 1\)"),
                ("free", np.ones((1, 1)), [-5], "key -5 is unknown: keys are 0 to 9223372036854775807"),
                ("e", np.ones((2, 1)), None, "must be whole numbers"),
                ("v", w, None, "'v' is not a table"),
            ]
            if codec:
                wrong += [("d", np.ones(2), None, "float32")]
            for name, values, rows_of, words in wrong:
                for how in (client.push, client.push_pull):
                    with pytest.raises(hocket.ArgumentError, match=words):
                        how(name, values, rows_of)
            with pytest.raises(hocket.ArgumentError, match="key 90 is unknown"):
                client.pull("e", rows=[1, 90])
            same(client.pull("w"), before, "w")
            same(client.pull("e", rows=keys), rows, "e")
            for _ in range(50):
                client.push("w", w)
            assert np.abs(client.pull("w") - 51 * w).max() < 0.01, "what was lost was kept, and is finite"


def test_a_push_that_is_refused_changes_nothing() -> None:
    for size in (1, 3):
        spread(changes_nothing, size, "threads")


def of_torch(comm: Communicator) -> None:
    with serve(comm, PARTS, on=[0], works=True) as server, Client(server) as client:
        client.push("w", torch.nn.Parameter(torch.ones(8)))
        client.push("w", torch.full((8,), 0.5, dtype=torch.bfloat16))
        client.push("w", np.full(8, 0.25, np.float16))
        client.push("w", [True] * 8)
        assert (client.pull("w") == 2.75).all()
        with pytest.raises(hocket.ArgumentError, match="complex64"):
            client.push("w", torch.ones(8, dtype=torch.complex64))


def test_tensors_are_pushed() -> None:
    """Tensors that require grad, and dtypes that NumPy has not, too."""
    spread(of_torch, 1, "threads")


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
        assert serve(comm, tables(), on=[0]).wait(60)
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


DIES_EARLY = """
import os, signal
import numpy as np
import hocket
from hocket.training import Client, Range, serve
comm = hocket.init()
if comm.rank == 0:
    assert serve(comm, {"w": Range(3)}, on=[0]).wait(60)
else:
    if comm.rank == 2:
        hocket.connect = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    with Client(comm, {"w": Range(3)}) as client:
        client.push("w", np.ones(3))
        assert client.tick() == 1 and client.pull("w").tolist() == [1.0] * 3
    print("went on")
"""


def test_a_worker_that_dies_before_its_first_link_is_not_waited_for() -> None:
    with Job(3, DIES_EARLY) as job:
        ends = job.wait(90)
    assert [end.code for end in ends] == [0, 0, -signal.SIGKILL] and "went on" in ends[1].out, ends


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
