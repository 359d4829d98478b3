"""Ranks whose counts do not match."""

from __future__ import annotations

import numpy as np
import pytest

import hocket
from support.worlds import spread


def expects_more(comm: hocket.Communicator) -> None:
    """Rank 0 expects a row of rank 1 that it does not send: the counts are told as rows, each by its name."""
    p = comm.size
    expected = [3 if comm.rank == 0 and r == 1 else 2 for r in range(p)]
    with pytest.raises(hocket.MismatchError) as caught:
        comm.alltoallv(np.ones((2 * p, 4)), [2] * p, expected)
        comm.close()
    text = str(caught.value)
    assert "rank 0 called alltoallv(float64[6, 4], send_counts=[2, 2, 2], recv_counts=[2, 3, 2]) at" in text, text
    assert "In alltoallv send_counts[j] on rank i must be recv_counts[i] on rank j.\n" in text, text


@pytest.mark.parametrize("name", ["allgather", "gather"])
def test_other_numbers_of_rows_have_a_call_of_their_own(name: str) -> None:
    def program(comm: hocket.Communicator, width: int) -> str:
        with pytest.raises(hocket.MismatchError) as caught:
            getattr(comm, name)(np.ones((3 + comm.rank, 2 + width * comm.rank)))
            comm.barrier()
        return str(caught.value)

    for width in (0, 1):
        with hocket.local_world(2) as world:
            for text in world.run(program, width):
                told = f"{name}v(x, counts), with counts = comm.allgather(len(x))" in text
                assert told is not bool(width), text


def test_counts_of_alltoallv() -> None:
    spread(expects_more, 3, "shm")
