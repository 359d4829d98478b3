"""Numbers instead of arrays."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError
from support.worlds import WORLDS, Program, spread


def sums(comm: Communicator) -> None:
    p, me = comm.size, comm.rank
    every = sum(range(p))
    for number, total in ((me, every), (me + 0.5, every + p / 2), (complex(me, 1), complex(every, p)), (me > 0, p > 1)):
        for _ in range(3):  # the second goes the short way
            found = comm.allreduce(number)
            assert type(found) is type(number) and found == total
    for kind in (np.float32, np.int8, np.uint64, np.float16):
        found = comm.allreduce(kind(me))
        assert type(found) is kind and found == every
    for _ in range(3):
        assert comm.allreduce(me, "max") == p - 1 and comm.allreduce(float(me), "avg") == every / p
        assert comm.allreduce(-(1 << 63), "min") == -(1 << 63)
        with pytest.raises(ArgumentError, match="does not fit into 64 bits"):
            comm.allreduce(1 << 64, "min")
    assert comm.allreduce(True, "min") is True
    for _ in range(3):
        assert comm.scan(me + 1) == sum(range(1, me + 2)) and comm.exscan(me + 1) == (sum(range(1, me + 1)) or 1)
        assert comm.reduce(2.0, p - 1) == (2.0 * p if me == p - 1 else None)
    assert comm.allreduce(1 << 62, "max") == 1 << 62


def moved(comm: Communicator) -> None:
    for _ in range(3):
        assert comm.broadcast(float(comm.rank), comm.size - 1) == comm.size - 1
    assert comm.allgather(comm.rank * 2).tolist() == [2 * r for r in range(comm.size)]
    assert comm.allgather(np.float32(1.5)).dtype == np.float32
    got = comm.gather(comm.rank + 0.5, 0)
    assert got is None if comm.rank else got.tolist() == [r + 0.5 for r in range(comm.size)]
    out = np.zeros(comm.size)
    assert comm.allgather(1.0, out=out) is out and out.sum() == comm.size


def asynchronous(comm: Communicator) -> None:
    works = [comm.allreduce(float(n), async_op=True) for n in range(5)]
    assert [work.result() for work in works] == [float(n * comm.size) for n in range(5)]
    assert comm.allreduce(1, timeout=60) == comm.size
    assert comm.allreduce(1, algorithm="ring") == comm.size
    assert comm.allgather(1, async_op=True).result().tolist() == [1] * comm.size


class Level(enum.IntEnum):
    TWO = 2


class Share(float):
    pass


def derived(comm: Communicator) -> None:
    """The result for a type that is derived of Python's is Python's."""
    for number, kind in ((Level.TWO, int), (Share(0.5), float)):
        for _ in range(2):
            found = comm.allreduce(number)
            assert type(found) is kind and found == number * comm.size
    with pytest.raises(ArgumentError, match="does not fit into 64 bits"):
        comm.allreduce(type("Big", (int,), {})(1 << 63))


def refused(comm: Communicator) -> None:
    for call, why in (
        (lambda: comm.allreduce(1, out=np.zeros(1)), "x=1 is a number, so the result is a new one"),
        (lambda: comm.alltoall(1.0), "alltoall distributes rows, but x=1.0 is a number"),
        (lambda: comm.scatter(3), "scatter distributes rows"),
        (lambda: comm.allreduce(1 << 64), "does not fit into 64 bits"),
        (lambda: comm.allreduce("3"), "x"),
        (lambda: comm.allreduce(None), "x"),
    ):
        with pytest.raises(ArgumentError, match=why):
            call()
    with hocket.group(), pytest.raises(ArgumentError, match="inside group"):
        comm.allreduce(1)
    assert comm.allreduce(1) == comm.size


CHECKS: tuple[Program, ...] = sums, moved, derived, asynchronous, refused


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


def test_other_types_on_other_ranks_are_told() -> None:
    def differ(comm: Communicator) -> Any:
        told = r"(?s)rank 0 called allreduce\(float64\[1\].*rank 1 called allreduce\(int64"
        with pytest.raises(MismatchError, match=told):
            comm.allreduce(1 if comm.rank else 1.0)

    hocket.local_world(2).run(differ)
