"""Python objects between ranks."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from support import jobs, worlds
from support.worlds import WORLDS, Program, spread

LARGE = {"weights": list(range(50_000)), "text": "ä" * 1000}
VALUES = (None, 0, "", {"a": [1, (2.5, None)]}, b"x" * 503, b"x" * 504, b"x" * 2000, LARGE)
"""Around the length of the first piece, too."""


def all_to_all(comm: Communicator) -> None:
    p, me = comm.size, comm.rank
    for value in VALUES:
        for root in range(p):
            assert comm.broadcast_object(value if me == root else object, root) == value
            every = comm.gather_object((me, value), root)
            assert every == [(r, value) for r in range(p)] if me == root else every is None
            dealt = comm.scatter_object([(r, value) for r in range(p)] if me == root else None, root)
            assert dealt == (me, value)
        assert comm.allgather_object([me, value]) == [[r, value] for r in range(p)]
    mine = object()
    assert comm.broadcast_object(threading.main_thread, 0) is threading.main_thread, "by its name"
    assert comm.allgather_object(np.arange(3) + me)[p - 1].tolist() == [p - 1, p, p + 1]
    assert mine is not comm.allgather_object(b"")


def own_entries_are_copies(comm: Communicator) -> None:
    """But the root's of a broadcast, which is the value that the others copy."""
    mine, me = {"a": [1]}, comm.rank
    gathered = comm.gather_object(mine, 0)
    for own in (
        comm.allgather_object(mine)[me], gathered[0] if gathered else {"a": [1]},
        comm.scatter_object([mine] * comm.size if me == 0 else None, 0),
    ):  # fmt: skip
        assert own == {"a": [1]}
        own["a"].append(2)
    assert mine == {"a": [1]} and (comm.broadcast_object(mine, 0) is mine) == (me == 0)


def between_two(comm: Communicator) -> None:
    p, me = comm.size, comm.rank
    if p < 2:
        return
    after, before = (me + 1) % p, (me - 1) % p

    def pass_on() -> None:
        for tag, value in enumerate(VALUES):
            comm.send_object((me, value), after, tag)

    if me:  # a long one may wait for its receiver, so one of the ring receives first
        pass_on()
    for tag, value in reversed([*enumerate(VALUES)]):
        assert comm.recv_object(before, tag) == (before, value)
    if not me:
        pass_on()
    x = np.zeros(1)
    comm.send_object("beside an array", after, 5)
    comm.send(np.full(1, 7.0), after, 5)
    comm.recv(x, before, 5)
    assert x[0] == 7 and comm.recv_object(before, 5) == "beside an array"
    if me:
        comm.send_object((me, VALUES[me % len(VALUES)]), 0, 9)
        comm.send_object((me, LARGE), 0, 9)
    else:
        came = [comm.recv_object(None, 9) for _ in range(2 * p - 2)]
        assert sorted(r for r, _ in came) == sorted([*range(1, p)] * 2)
        for r in range(1, p):
            assert [value for sender, value in came if sender == r] == [VALUES[r % len(VALUES)], LARGE]
    comm.barrier()


def refused(comm: Communicator) -> None:
    for call, why in (
        (lambda: comm.allgather_object(lambda: 0), "a function cannot be pickled"),
        (lambda: comm.broadcast_object(0, comm.size), "root"),
        (lambda: comm.send_object(0, comm.size), "dest"),
        (lambda: comm.send_object(0, 0, 1 << 30), r"tag=1073741824 must be between 0 and 2\*\*30 - 1 for objects"),
        (lambda: comm.scatter_object([0] * (comm.size + 1), comm.rank), "one for each"),
        (lambda: comm.scatter_object(None, comm.rank), "a list of"),
    ):
        with pytest.raises(ArgumentError, match=why):
            call()
    assert comm.allgather_object(comm.rank) == [*range(comm.size)]


def large_arrays(comm: Communicator) -> None:
    """Beside the pickle, one message each; within a group they are copies, as the sender may write to them."""
    p, me = comm.size, comm.rank
    x = np.arange(300_000.0).reshape(600, 500)
    fixed = x + 1
    fixed.flags.writeable = False
    values: list[Any] = [x, {"a": x, "b": [fixed, "text"], "again": x}, np.asfortranarray(x), x[:, ::2], fixed]
    for value in values:
        got = comm.broadcast_object(value if me == 0 else None, 0)
        for a, b in zip(arrays(got), arrays(value), strict=True):
            assert (a == b).all() and a.flags.writeable == b.flags.writeable
            assert a.flags.f_contiguous == b.flags.f_contiguous
    if p > 1 and me == 0:
        comm.send_object(values[1], 1)
        with hocket.group():
            comm.send_object(x, 1)
            x[:] = 0
    elif me == 1:
        got = comm.recv_object(None)
        assert got["a"] is got["again"] and (got["a"] == x).all() and (got["b"][0] == fixed).all()
        assert (comm.recv_object(0) == x).all()
    comm.barrier()


def arrays(value: Any) -> list[Any]:
    return [value["a"], value["b"][0], value["again"]] if isinstance(value, dict) else [value]


CHECKS: tuple[Program, ...] = all_to_all, own_entries_are_copies, between_two, refused, large_arrays


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


def test_a_job_may_refuse_them() -> None:
    source = """
import hocket
with hocket.init() as comm:
    for call in (lambda: comm.broadcast_object(1), lambda: comm.allgather_object(1), lambda: comm.gather_object(1),
                 lambda: comm.scatter_object([1, 2], comm.rank), lambda: comm.scatter_object(None, 1 - comm.rank),
                 lambda: comm.send_object(1, 1 - comm.rank), lambda: comm.recv_object(1 - comm.rank)):
        try:
            call()
        except hocket.ArgumentError as error:
            assert "this job refuses objects (HOCKET_OBJECTS=0)" in str(error)
        else:
            print("not refused")
    assert comm.allreduce(1) == 2
"""
    assert jobs.run(2, source, PYTHONPATH=worlds.PATH, HOCKET_OBJECTS="0") == ["", ""]


def test_one_that_cannot_be_unpickled_here_is_told_and_the_communicator_lives() -> None:
    def run(comm: Communicator) -> int:
        if comm.rank == 0:
            comm.send_object(Odd(), 1)
        else:
            with pytest.raises(ZeroDivisionError):
                comm.recv_object(0)
        return int(comm.allreduce(1))

    assert hocket.local_world(2).run(run) == [2, 2]


class Odd:
    """Its bytes divide by zero where they are read."""

    def __reduce__(self) -> object:
        return divmod, (1, 0)


PEAK = """
import numpy as np
import hocket
def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024
comm = hocket.init()
value = {"x": np.ones(64 << 20, np.uint8)} if comm.rank == 0 else None
for way in ("broadcast", "message"):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins again
    before = status("VmRSS")
    if way == "broadcast":
        got = comm.broadcast_object(value)
    else:
        got = comm.send_object(value, 1) if comm.rank == 0 else comm.recv_object(0)
    print(status("VmHWM") - before)
    del got
    comm.barrier()
"""


def test_a_large_array_is_there_once() -> None:
    """MiB at the peak beyond what was there: nothing at the sender, the array itself at the receiver."""
    sender, receiver = ([float(line) for line in out.split()] for out in jobs.run(2, PEAK, stay=False))
    assert max(sender) < 16 and 60 < max(receiver) < 80, (sender, receiver)
