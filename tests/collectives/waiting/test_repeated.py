"""Asynchronous calls that were made before, which go a shorter way; that differ between ranks; that fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, Error, MismatchError
from support.worlds import same, spread

Array = np.ndarray[Any, Any]


def failing(comm: Communicator) -> None:
    """An error surfaces in wait, on all ranks; later calls are refused."""

    def bad(a: Array, b: Array) -> Array:
        raise ZeroDivisionError("on purpose")

    work = comm.allreduce(np.ones(4), bad, async_op=True)
    with pytest.raises((ZeroDivisionError, Error)) as caught:
        work.wait()
    assert "on purpose" in str(caught.value), caught.value
    with pytest.raises((ZeroDivisionError, Error)):
        work.result()
    with pytest.raises(Error):
        comm.allreduce(np.ones(4))


def repeated(comm: Communicator) -> None:
    """The same call again and again, alone and beside blocking ones: every kind of output, and avg."""
    p, mine = comm.size, np.arange(6.0) + comm.rank
    mean, rows = np.arange(6.0) + (p - 1) / 2, np.concatenate([np.arange(6.0) + r for r in range(p)])
    for i in range(6):
        out = np.empty(6)
        works = [
            comm.allreduce(mine.copy(), "avg", async_op=True),
            comm.allreduce(mine, "avg", out, async_op=True),
            comm.allgather(mine, async_op=True),
            comm.reduce(mine, 0, async_op=True),
            comm.broadcast(mine.copy(), p - 1, async_op=True),
        ]
        if i % 2:
            same(comm.allreduce(mine.copy()), p * mean, "a blocking call behind queued ones")
        same(works[1].result(), mean, "avg in out")
        assert works[1].result() is out
        same(works[0].result(), mean, "avg in place")
        same(works[2].result(), rows, "allgather")
        assert (works[3].result() is None) == (comm.rank != 0)
        same(works[4].result(), np.arange(6.0) + p - 1, "broadcast")


def uneven(comm: Communicator) -> None:
    """v-variants again and again: with other counts in between, in other sequences, and in a list that was changed."""
    p, r = comm.size, comm.rank
    for i in range(8):
        counts: Any = [2] * p if i % 3 == 0 else [k + 1 for k in range(p)]
        counts = tuple(counts) if i == 5 else np.array(counts) if i == 6 else counts
        rows = [np.arange(float(n)) + 10 * k for k, n in enumerate(counts)]
        same(comm.allgatherv(rows[r], counts), np.concatenate(rows), "allgatherv")
        whole = np.concatenate(rows)
        same(comm.reduce_scatterv(whole + r, counts), p * rows[r] + p * (p - 1) / 2, "reduce_scatterv")
        same(comm.scatterv(whole, counts), rows[r], "scatterv")
        same(comm.gatherv(rows[r], counts, p - 1, async_op=True).result(), whole if r == p - 1 else None, "gatherv")
        to, of = [k + 1 if i < 4 else 2 for k in range(p)], [r + 1 if i < 4 else 2] * p
        sent = np.concatenate([np.full(n, 100.0 * r + k) for k, n in enumerate(to)])
        got = np.concatenate([np.full(n, 100.0 * k + r) for k, n in enumerate(of)])
        same(comm.alltoallv(sent, to, of), got, "alltoallv")
    counts = [1] * p
    for _ in range(3):
        assert len(comm.allgatherv(np.ones(counts[r]), counts)) == sum(counts)
        counts[0] += 1  # in the list that the call before was given
    with pytest.raises(ArgumentError, match="whole numbers"):
        comm.allgatherv(np.ones(1), [1.0] * p)
    with pytest.raises(ArgumentError, match="row counts"):
        comm.allgatherv(np.ones(1), [1] * (p + 1))


def differing_later(comm: Communicator) -> None:
    """A call that was made often takes the short way; its error still says which call, and which line."""
    for _ in range(3):
        comm.allreduce(np.ones(4), async_op=True).wait()
    count = 4 if comm.rank == 0 else 5
    with pytest.raises(MismatchError) as caught:  # a rank that comes last may hear of it before it calls
        comm.allreduce(np.ones(count), async_op=True).wait(60)
    text = str(caught.value)
    assert "allreduce(float64[4], op='sum') at test_repeated.py:" in text and "in differing_later" in text, text
    assert "allreduce(float64[5], op='sum') at test_repeated.py:" in text, text


@pytest.mark.parametrize(("size", "transport"), [(2, "threads"), (3, "shm"), (2, "tcp")])
def test_calls_made_before(size: int, transport: str) -> None:
    """The last ends the communicator."""
    spread([repeated, uneven, differing_later], size, transport)


@pytest.mark.parametrize(("size", "transport"), [(3, "threads"), (2, "shm")])
def test_errors_surface_in_wait(size: int, transport: str) -> None:
    spread(failing, size, transport)
