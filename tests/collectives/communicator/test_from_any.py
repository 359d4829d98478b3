"""A receive from any rank concerns those who send, and nobody else."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from worlds import spread

from hocket.collectives.communicator.communicator import Communicator


def over_the_usual_transport(comm: Communicator) -> None:
    """To ask for the transport that is taken anyway concerns nobody else."""
    transport = comm.world.transport((comm.rank + 1) % comm.size)
    if comm.rank == 0:
        comm.send(np.arange(5.0), 1, transport=transport)
    elif comm.rank == 1:
        out = np.empty(5)
        comm.recv(out, None, transport=transport, timeout=10)
        assert (out == np.arange(5.0)).all()
    comm.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_message_over_the_usual_transport(transport: str) -> None:
    spread(over_the_usual_transport, 3, transport)


def one_has_dropped_it(comm: Communicator) -> None:
    """Who needs a communicator no more holds up nobody who receives from any rank of it."""
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
        inner.recv(out, None, timeout=10)
        assert out[0] == 7
    elif comm.rank == 2:
        assert inner is not None
        time.sleep(0.2)
        inner.send(np.full(1, 7.0), 0)
    comm.barrier()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_from_any_rank_where_one_has_dropped_the_communicator(transport: str) -> None:
    spread(one_has_dropped_it, 3, transport)
