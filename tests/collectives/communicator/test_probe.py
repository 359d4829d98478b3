"""Messages of a rank to itself, and what is known of a message before it is received."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from support.worlds import same, spread


def to_itself(comm: Communicator) -> None:
    """Messages to itself are kept, in order, by tag; a recv may come first."""
    r, x, y = comm.rank, np.arange(300_000.0), np.zeros(300_000)
    for turn in range(3):
        comm.send(x + turn, r, tag=3)
    for turn in range(3):
        same(comm.recv(y, r, tag=3), x + turn, f"message {turn}")
    work = comm.recv(y, r, tag=4, async_op=True)
    assert not work.done()
    comm.send(x + 9, r, tag=4)
    same(work.result(), x + 9, "a recv that came first")
    out = np.zeros(2)
    comm.send(np.ones(2), r)
    comm.sendrecv(np.full(2, 5.0), r, out, r)
    same(out, np.ones(2), "the older message")
    same(comm.recv(out, None), np.full(2, 5.0), "from any rank: itself")


def probed(comm: Communicator) -> None:
    """It says what comes, takes nothing, and leaves other tags in their order."""
    p, r = comm.size, comm.rank
    assert comm.probe(tag=9, timeout=0) is None and comm.probe(tag=9, timeout=0.01) is None
    comm.barrier()
    comm.send(np.arange(7, dtype=np.int16), (r + 1) % p, tag=8)
    comm.send(np.arange(5, dtype=np.float32), (r + 1) % p, tag=9)
    for _ in range(2):
        found = comm.probe(tag=9)
        assert found is not None and (found.source, found.tag) == ((r - 1) % p, 9)
        assert (found.dtype, found.nbytes, found.count) == ("float32", 20, 5)
    assert comm.probe(found.source, tag=7, timeout=0) is None
    same(comm.recv(np.zeros(found.count, found.dtype), found.source, tag=9), np.arange(5, dtype=np.float32), "it")
    same(comm.recv(np.zeros(7, np.int16), found.source, tag=8), np.arange(7, dtype=np.int16), "the earlier one")
    comm.send(np.zeros(0), r, tag=1)
    empty = comm.probe(r, tag=1)
    assert empty is not None and empty.count == 0
    comm.recv(np.zeros(0), r, tag=1)
    waiting = comm.recv(np.zeros(1), None, tag=6, async_op=True)
    comm.send(np.ones(1), (r + 1) % p, tag=6)
    assert comm.probe(tag=6, timeout=0.05) is None, "it is the recv's that waits"
    waiting.wait()


@pytest.mark.parametrize(("size", "transport"), [(1, "shm"), (2, "shm"), (3, "tcp")])
def test_between_ranks(size: int, transport: str) -> None:
    spread((to_itself, probed), size, transport)
