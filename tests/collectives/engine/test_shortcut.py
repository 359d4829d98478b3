"""Collectives of a known kind take the short way, with whatever they ask for; everything else takes the general one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from support.worlds import spread

X = np.arange(12, dtype=np.float32).reshape(6, 2)


class General(Exception):
    """The general way was taken."""


def closed(comm: Communicator) -> Any:
    """From now on the general way raises.  What it was before."""

    def refuse(*args: Any) -> None:
        raise General

    general, comm.runner.general = comm.runner.general, refuse  # type: ignore[method-assign]
    return general


def what_a_call_may_ask_for(comm: Communicator) -> None:
    """Each kind of call twice: the second one needs no plan, no checks and no objects of its own."""
    x, total = X.copy(), 2 * X.copy()
    sender = comm.lane("urgent", 5)
    calls = {
        "codec": lambda: comm.allreduce(x, out=np.zeros_like(x), codec="fp16"),
        "transport": lambda: comm.allreduce(x, out=np.zeros_like(x), transport="threads"),
        "a time limit": lambda: comm.allreduce(x, out=np.zeros_like(x), timeout=7.0),
        "a lane": lambda: sender.allreduce(x, out=np.zeros_like(x)),
        "counts": lambda: comm.allgather(comm.reduce_scatterv(x, [3, 3])),
        "other counts": lambda: comm.allgatherv(comm.reduce_scatterv(x, [2, 4]), (2, 4)),
        "both counts": lambda: comm.alltoallv(x, [3, 3], [3, 3])[:6] + np.roll(x, 0, 0),
        "later": lambda: comm.allreduce(x, out=np.zeros_like(x), async_op=True).result(),
        "out is x": lambda: comm.allreduce(x.copy(), op="max") * 2,
        "NumPy's numbers": lambda: comm.allreduce(np.float32(1)) * X,
        "another root": lambda: comm.broadcast(x, comm.size - 1) * 2,
        "auto": lambda: comm.allreduce(x, out=np.zeros_like(x), codec="auto"),
        "out is a view of x": lambda: _into_a_view(comm, x.copy()),
        "in place": lambda: _in_place(comm, np.array([x, x])),
    }
    first = {name: call() for name, call in calls.items()}
    generals = [closed(comm), closed(sender)]
    for name, call in calls.items():
        assert (call() == first[name]).all(), name
        assert name == "both counts" or (first[name] == total).all(), name
    for unknown in (
        lambda: comm.allreduce(x, codec="bf16"), lambda: comm.allreduce(x, op="prod"), lambda: comm.allreduce(x[1:]),
        lambda: comm.reduce_scatterv(x, [1, 5]), lambda: comm.reduce_scatterv(x, [3, np.int64(3)]),
        lambda: comm.allreduce(x, timeout=-1.0), lambda: comm.allreduce(x, timeout="7"),
        lambda: comm.allreduce(x, transport="tcp"), lambda: comm.allreduce(x, algorithm="ring"),
        lambda: comm.allreduce(x, order="rank"), lambda: comm.broadcast(x, 0),
    ):  # fmt: skip
        with pytest.raises(General):
            unknown()
    with hocket.group(), pytest.raises(General):
        comm.allreduce(x, timeout=7.0)
    comm.runner.general, sender.runner.general = generals  # type: ignore[method-assign]


def _into_a_view(comm: Communicator, y: Any) -> Any:
    comm.allreduce(y, out=y[:])
    return y


def _in_place(comm: Communicator, twice: Any) -> Any:
    """A rank's own block of the sum, then all blocks."""
    flat = twice.reshape(2, -1)[0]
    own = flat.reshape(comm.size, -1)[comm.rank]
    comm.reduce_scatter(flat, out=own)
    comm.allgather(own, out=flat)
    return twice[0]


def in_place_or_apart(comm: Communicator) -> None:
    """Two plans, in turns: x may be this rank's own block of out, another one of this kind, or lie elsewhere."""
    for step in range(6):
        out, many = np.zeros(8, np.int32), np.arange(8, dtype=np.int32) + step
        own = out[4 * comm.rank :][:4]
        own[:] = comm.rank + step
        comm.allgather(own if step % 2 else own.copy(), out=out)
        assert out.tolist() == [step] * 4 + [step + 1] * 4
        block = many[4 * comm.rank :][:4]
        wanted, block = (2 * block).tolist(), block if step % 2 else block.copy()
        comm.reduce_scatter(many, out=block)
        assert block.tolist() == wanted
        assert comm.allgather(own).tolist() == [step] * 4 + [step + 1] * 4
        x = np.full(2, comm.rank + 1.0)
        for into in (np.ones(2), None, x[:]):  # not in place, though the second one's result goes into x
            x[:] = comm.rank + 1.0
            got = comm.exscan(x, op=hocket.premul_sum(3.0), out=into)
            assert comm.rank == 0 or (got == 3).all()
    for x in (out[1:5], out[4 * (1 - comm.rank) :][:4]):
        with pytest.raises(ArgumentError, match="out overlaps x; allgather"):
            comm.allgather(x, out=out)
        with pytest.raises(ArgumentError, match="out overlaps x; reduce_scatter"):
            comm.reduce_scatter(out, out=x)


def a_list_that_changes(comm: Communicator) -> None:
    """The table keeps a copy of the counts: the caller's list may say something else next time."""
    counts = [1, 5]
    assert comm.reduce_scatterv(X.copy(), counts).shape == ((1, 5)[comm.rank], 2)
    counts[:] = [4, 2]
    for _ in range(2):
        assert comm.reduce_scatterv(X.copy(), counts).shape == ((4, 2)[comm.rank], 2)


def wrong_for_good(comm: Communicator) -> None:
    """A call that was refused once is refused again."""
    for _ in range(2):
        for call, words in (
            (lambda: comm.allreduce(X.copy(), timeout=0.0), "timeout="),
            (lambda: comm.allreduce(X.copy(), codec="int9"), "int9"),
            (lambda: comm.allreduce(X.copy(), order="any rank"), "order="),
            (lambda: comm.broadcast(X.copy(), root=9), "root=9"),
        ):
            with pytest.raises(ArgumentError, match=words):
                call()


@pytest.mark.parametrize("laws", [what_a_call_may_ask_for, in_place_or_apart, a_list_that_changes, wrong_for_good])
def test_the_short_way(laws: Any) -> None:
    spread(laws, 2, "threads")
