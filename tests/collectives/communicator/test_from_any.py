"""A receive from any rank concerns those who send, and nobody else."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import TimeoutError
from support.worlds import spread


def over_the_usual_transport(comm: Communicator) -> None:
    """To ask for the transport that is taken anyway concerns nobody else."""
    transport = comm.world.transport((comm.rank + 1) % comm.size)
    if comm.rank == 0:
        comm.send(np.arange(5.0), 1, transport=transport)
    elif comm.rank == 1:
        out = np.empty(5)
        comm.recv(out, None, transport=transport, timeout=60)
        assert (out == np.arange(5.0)).all()
    comm.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_message_over_the_usual_transport(transport: str) -> None:
    spread(over_the_usual_transport, 3, transport)


def one_has_dropped_it(comm: Communicator) -> None:
    """A rank that needs a communicator no more holds up nobody who receives from any rank of it."""
    inner: Communicator | None = comm.dup()
    inner.sendrecv(np.ones(1), (comm.rank + 1) % 3, np.empty(1), (comm.rank + 2) % 3)
    inner.recv(np.empty(1), 0) if comm.rank == 1 else inner.send(np.ones(1), 1) if comm.rank == 0 else None
    comm.barrier()
    if comm.rank == 1:
        inner = None
        gc.collect()
    comm.barrier()
    out = np.zeros(1)
    if comm.rank == 0:
        assert inner is not None
        inner.recv(out, None, timeout=60)
        assert out[0] == 7
    elif comm.rank == 2:
        assert inner is not None
        time.sleep(0.2)
        inner.send(np.full(1, 7.0), 0)
    comm.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_from_any_rank_where_one_has_dropped_the_communicator(transport: str) -> None:
    spread(one_has_dropped_it, 3, transport)


def asynchronous(comm: Communicator, out: Any) -> tuple[int | None, int | None]:
    work = comm.recv(out, None, None, async_op=True)
    work.wait()
    return work.source, work.tag


def probed(comm: Communicator, out: Any) -> tuple[int | None, int | None]:
    found = comm.probe(tag=None)
    assert found is not None and comm.probe(tag=None) == found
    comm.recv(out, found.source, found.tag)
    return found.source, found.tag


def blocking(comm: Communicator, out: Any) -> tuple[int | None, int | None]:
    comm.recv(out, None, None)
    return int(out[0]), int(out[1])


def in_turns(comm: Communicator) -> None:
    """Three ranks send more than can be taken: each has its turn, whatever the way of receiving, and its order."""
    n = 100
    for ask in (asynchronous, probed, blocking):
        if comm.rank:
            for tag in range(n):
                comm.send(np.array([comm.rank, tag]), 0, tag)
        else:
            for r in (1, 2, 3):
                comm.probe(r, tag=None)  # it runs: on a busy machine that takes a while
            time.sleep(0.5)
            seen = []
            for _ in range(3 * n):
                out = np.zeros(2, int)
                seen.append(ask(comm, out))
                assert seen[-1] == (out[0], out[1])
            for r in (1, 2, 3):
                assert [tag for source, tag in seen if source == r] == [*range(n)]
                assert sum(source == r for source, _ in seen[:60]) > 10, (ask, seen[:60])
        comm.barrier()


@pytest.mark.parametrize("transport", ["threads", "shm", "tcp"])
def test_no_rank_starves(transport: str) -> None:
    spread(in_turns, 4, transport)


def in_vain(comm: Communicator) -> None:
    """Nothing of the library's own is taken by whoever asks for any tag; the limit is one of this wait."""
    comm.send_object("not an array", comm.rank)
    assert comm.probe(tag=None, timeout=0) is None and comm.probe(tag=None, timeout=0.05) is None
    work = comm.recv(np.empty(1), None, None, async_op=True)
    assert not work.done() and work.source is None and work.tag is None
    comm.send(np.ones(1), comm.rank, 3)
    assert work.wait() and (work.source, work.tag) == (comm.rank, 3)
    assert comm.recv_object(None) == "not an array"
    comm.barrier()
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"recv\(float64\[1\], from any rank, any tag\)"):
            comm.recv(np.empty(1), None, None, timeout=0.2)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_message_that_does_not_come(transport: str) -> None:
    spread(in_vain, 2, transport)
