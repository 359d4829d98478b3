"""Inside `group()` every call is queued, or refused before anything is sent, or has nothing to do with the group.

A new call of the public surface must be put into one of the three tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.collectives import Collectives
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.communicator.lanes import Laned
from support.worlds import Program, spread

LONG = "x" * 5000
"""An object of more than one message."""
Call = Callable[[Any, int, int], Any]
"""`on` (a communicator, or the module), this rank, and how many there are: the arrays that will hold the result."""


def rows(rank: int, n: int) -> Any:
    return np.arange(n, dtype=np.float32) + 10 * rank


def passed_on(on: Any, rank: int, size: int, exchange: bool) -> Any:
    """Every rank receives first, and sends then."""
    out, after, before = np.zeros(3, np.float32), (rank + 1) % size, (rank - 1) % size
    if exchange:
        return on.sendrecv(rows(rank, 3), after, out, before)
    on.recv(out, before)
    on.send(rows(rank, 3), after)
    return out


def object_passed_on(on: Any, rank: int, size: int) -> None:
    on.send_object([rank, LONG], (rank + 1) % size, tag=3)


QUEUED: dict[str, Call] = {
    "allreduce": lambda on, r, p: on.allreduce(rows(r, 4)),
    "reduce": lambda on, r, p: on.reduce(rows(r, 4), p - 1),
    "reduce_scatter": lambda on, r, p: on.reduce_scatter(rows(r, 2 * p)),
    "reduce_scatterv": lambda on, r, p: on.reduce_scatterv(rows(r, 2 * p), [2] * p),
    "scan": lambda on, r, p: on.scan(rows(r, 4)),
    "exscan": lambda on, r, p: on.exscan(rows(r, 4)),
    "broadcast": lambda on, r, p: on.broadcast(rows(r, 4), p - 1),
    "allgather": lambda on, r, p: on.allgather(rows(r, 2)),
    "allgatherv": lambda on, r, p: on.allgatherv(rows(r, r + 1), [*range(1, p + 1)]),
    "gather": lambda on, r, p: on.gather(rows(r, 2), p - 1),
    "gatherv": lambda on, r, p: on.gatherv(rows(r, r + 1), [*range(1, p + 1)]),
    "scatter": lambda on, r, p: on.scatter(rows(r, 2 * p)),
    "scatterv": lambda on, r, p: on.scatterv(rows(r, 2 * p), [2] * p),
    "alltoall": lambda on, r, p: on.alltoall(rows(r, 2 * p)),
    "alltoallv": lambda on, r, p: on.alltoallv(rows(r, 2 * p), [2] * p, [2] * p),
    "barrier": lambda on, r, p: on.barrier(),
    "prepare": lambda on, r, p: on.prepare("allreduce", rows(r, 4))(),
    "send": lambda on, r, p: passed_on(on, r, p, False),
    "recv": lambda on, r, p: passed_on(on, r, p, False),
    "sendrecv": lambda on, r, p: passed_on(on, r, p, True),
    "send_object": object_passed_on,
}
CUT = [hocket.Layout.cut((p,), p) for p in (1, 2, 3, 4)]
REFUSED: dict[str, Call] = {
    "broadcast_object": lambda on, r, p: on.broadcast_object(LONG if r == 0 else None) == LONG,
    "allgather_object": lambda on, r, p: on.allgather_object(r) == [*range(p)],
    "gather_object": lambda on, r, p: on.gather_object(r) == ([*range(p)] if r == 0 else None),
    "scatter_object": lambda on, r, p: on.scatter_object([*range(p)]) == r,
    "recv_object": lambda on, r, p: on.recv_object((r - 1) % p, tag=3) == [(r - 1) % p, LONG],
    "check_equal": lambda on, r, p: on.check_equal([r, 1]) == ({"x[0]": [(i,) for i in range(p)]} if p > 1 else {}),
    "redistribute": lambda on, r, p: on.redistribute([np.ones(1)], CUT[p - 1], CUT[p - 1]) == [np.ones(1)],
    "prepare_redistribute": lambda on, r, p: on.prepare_redistribute([np.ones(1)], CUT[p - 1], CUT[p - 1])() == [1],
    "split": lambda on, r, p: on.split(r).size == 1,
    "dup": lambda on, r, p: on.dup().size == p,
    "subgroup": lambda on, r, p: on.subgroup(range(p)).size == p,
    "lane": lambda on, r, p: on.lane("urgent").size == p,
    "lanes": lambda on, r, p: [each.size for each in on.lanes({"a": 1, "b": -1})] == [p, p],
    "create_group": lambda on, r, p: on.create_group(range(p), type(on).__name__).size == p,
    "tune": lambda on, r, p: on.tune(["allreduce"], [8], seconds=0.01).points[0].nbytes == 8,
}
"""Calls outside of a group: is the result right?"""
APART = {
    "Grid", "Layout", "PROC_NULL", "Selector", "Work", "communicator", "empty", "explain", "expression", "grid_shape",
    "group", "on_stream", "premul_sum", "rank", "register", "set_timeout", "shared_arrays", "show", "size",
    "stats", "zeros",  # nothing is sent
    "probe", "test_any", "wait_all", "wait_any", "close",  # for what was sent before
    "mark", "recorder", "trace",  # what this rank did
    "init", "from_mpi", "local_world", "listen", "connect", "publish", "fetch", "Reader",  # a job of its own
}  # fmt: skip


def test_the_whole_surface_is_decided() -> None:
    methods = vars(Collectives) | vars(Laned) | vars(Communicator)
    surface = {name for name, each in methods.items() if inspect.isroutine(each) and not name.startswith("_")}
    errors = {name for name in hocket.__all__ if name.endswith("Error")}
    surface |= set(hocket.__all__) - errors - {"Communicator"}
    assert sorted([*QUEUED, *REFUSED, *APART]) == sorted(surface)


def queued(comm: Communicator) -> None:
    """All in one group; the results are those that the same calls have outside of it."""
    for on in (comm, hocket):
        with hocket.group() as works:
            inside = {name: call(on, comm.rank, comm.size) for name, call in QUEUED.items()}
            assert len(works) >= len(QUEUED)
        assert comm.recv_object((comm.rank - 1) % comm.size, tag=3) == [(comm.rank - 1) % comm.size, LONG]
        for name, call in QUEUED.items():
            alike = QUEUED["sendrecv"] if name in ("send", "recv") else call  # outside, a recv must not come first
            wanted = alike(on, comm.rank, comm.size)
            assert np.array_equal(inside[name], wanted), f"{name}: {inside[name]}, wanted {wanted}"
        comm.recv_object((comm.rank - 1) % comm.size, tag=3)


def refused(comm: Communicator) -> None:
    """With the communicator, and the group's other calls, as they were."""
    for on in (comm, hocket):
        for name, call in REFUSED.items():
            with hocket.group():
                before = comm.allreduce(rows(comm.rank, 5))
                with pytest.raises(hocket.ArgumentError, match=rf"{name}\(\) needs its result at once.*inside group"):
                    call(on, comm.rank, comm.size)
                after = comm.allgather(rows(comm.rank, 1))
            assert before[0] == 10 * sum(range(comm.size)) and after.tolist() == [10.0 * r for r in range(comm.size)]
            with pytest.raises(hocket.ArgumentError), hocket.group():
                call(on, comm.rank, comm.size)
            if name == "recv_object":
                object_passed_on(on, comm.rank, comm.size)
            assert call(on, comm.rank, comm.size), name


def apart(comm: Communicator) -> None:
    """A group of threads, or of another job, is not one of theirs."""
    with hocket.group() as works:
        assert comm.probe(timeout=0) is None and len(works) == 0
        work = comm.allreduce(rows(comm.rank, 2), async_op=True)
        assert hocket.wait_all([work]) and hocket.wait_any([work]) == hocket.test_any([work]) == 0
        assert hocket.local_world(2).run(lambda other: other.allreduce(1)) == [2, 2]
        with hocket.init(0, 1, make_default=False) as alone:
            assert len(works) == 0 and alone.size == 1
    twin = comm.dup()
    with hocket.group():
        last = twin.allreduce(rows(comm.rank, 2))
        twin.close()
    assert last[1] == comm.size + 10 * sum(range(comm.size))


def over_another_transport(comm: Communicator) -> None:
    """The first call over it makes a queue, which all ranks make together at once."""
    with hocket.group():
        first = comm.allreduce(rows(comm.rank, 5))
        second = comm.allreduce(rows(comm.rank, 5), transport="tcp")
    assert first.tolist() == second.tolist()


PROGRAMS: tuple[Program, ...] = queued, refused, apart


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (3, "threads"), (2, "shm")])
def test_every_call_in_a_group(size: int, transport: str) -> None:
    spread([*PROGRAMS, over_another_transport] if transport == "shm" else PROGRAMS, size, transport)
