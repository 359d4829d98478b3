"""Wrong arguments, and calls after the end: the text says what to do, and nobody else is disturbed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.start import default
from support import jobs
from support.cases import more

Wrong = Callable[[Any], Any]


def read_only() -> Any:
    x = np.ones(4)
    x.flags.writeable = False
    return x


X = np.zeros(600)
# fmt: off
WRONG: dict[str, tuple[Wrong, str]] = {
    "strided out of another shape": (lambda c: c.allreduce(np.ones(4), out=np.ones((3, 4))[:, 1]), r"shape \(3,\)"),
    "read-only": (lambda c: c.allreduce(read_only()), "read-only; pass out= or a writable copy"),
    "read-only out": (lambda c: c.allreduce(np.ones(4), out=read_only()), "out is read-only"),
    "read-only, to receive": (lambda c: c.recv(read_only(), (c.rank + 1) % 3), "out is read-only"),
    "a list": (lambda c: c.allreduce([1, 2, 3]), r"x\[0\] is an int: pass a NumPy array"),
    "None": (lambda c: c.allreduce(None), "x is None: pass a NumPy array"),
    "a string": (lambda c: c.broadcast("text"), "x is a str: pass a NumPy array"),
    "objects": (lambda c: c.allreduce(np.array([{}, []], object)), "object"),
    "dates": (lambda c: c.allreduce(np.zeros(4, "datetime64[s]")), "bytes.*sum|sum.*bytes"),
    "unknown op": (lambda c: c.allreduce(np.ones(4), "plus"), "plus.*sum"),
    "op not for floats": (lambda c: c.allreduce(np.ones(4), "bxor"), "bxor"),
    "overlap": (lambda c: c.allreduce(X[:500], out=X[100:]), "overlaps x.*separate memory"),
    "overlap of alltoall": (lambda c: c.alltoall(X, out=X), "overlaps x; alltoall needs separate memory"),
    "overlap of allgather": (lambda c: c.allgather(X[:10], out=X[5:35]), "overlaps x; allgather"),
    "out of another dtype": (lambda c: c.allreduce(np.ones(4), out=np.ones(4, "f4")), "out has dtype float32, x has"),
    "out too small": (lambda c: c.allgather(np.ones(4), out=np.ones(11)), r"out has shape \(11,\).*gives \(12,\)"),
    "root too large": (lambda c: c.broadcast(X, 3), r"root=3 is not a rank of this communicator \(0\.\.2\)"),
    "root negative": (lambda c: c.reduce(X, -1), "root=-1 is not a rank"),
    "root a float": (lambda c: c.gather(X, 1.0), "root=1.0 is not a rank"),
    "dest": (lambda c: c.send(X, 7), "dest=7 is not a rank"),
    "source": (lambda c: c.recv(X, 3), "source=3 is not a rank"),
    "probe of nobody": (lambda c: c.probe(3), "source=3 is not a rank"),
    "probe without patience": (lambda c: c.probe(timeout=-1), "timeout=-1"),
    "tag": (lambda c: c.send(X, (c.rank + 1) % 3, tag=-1), "tag=-1 must be between 0 and"),
    "tag too large": (lambda c: c.recv(X, (c.rank + 1) % 3, tag=1 << 31), "tag=2147483648 must be between"),
    "rows do not divide": (lambda c: c.reduce_scatter(np.ones(4)), "not a multiple of 3 ranks; use reduce_scatterv"),
    "rows of alltoall": (lambda c: c.alltoall(np.ones(4)), "not a multiple of 3 ranks; use alltoallv"),
    "rows of scatter": (lambda c: c.scatter(np.ones(4), root=c.rank), "not a multiple of 3 ranks; use scatterv"),
    "too few counts": (lambda c: c.allgatherv(np.ones(4), [4, 4]), "must be 3 row counts, one per rank"),
    "negative count": (lambda c: c.reduce_scatterv(np.ones(4), [5, -1, 0]), "each at least 0"),
    "counts that do not add up": (lambda c: c.reduce_scatterv(np.ones(4), [1, 1, 1]), "add up to 3 rows; x has 4"),
    "counts of another rank": (lambda c: c.allgatherv(np.ones(4), [5, 5, 5]), r"counts\[\d\] is 5, but x has 4 rows"),
    "send counts": (lambda c: c.alltoallv(np.ones(4), [1, 1, 1], [1, 1, 1]), "send_counts.*add up to 3 rows; x has 4"),
    "counts to itself": (lambda c: c.alltoallv(np.ones(3), [1, 1, 1], [2, 2, 2]), "are what this rank sends to itself"),
    "scatter of nothing": (lambda c: c.scatter(None, root=c.rank), "the root passes x"),
    "a scalar": (lambda c: c.allgather(np.array(3.0)), r"pass x.reshape\(1\)"),
    "unknown algorithm": (lambda c: c.allreduce(X, algorithm="fastest"), "fastest.*ring"),
    "algorithm out of order": (lambda c: c.allreduce(X, algorithm="ring", order="rank"), "does not keep rank order"),
    "a subgroup with strangers": (lambda c: c.subgroup([0, 3]), "ranks=3 is not a rank"),
}
# fmt: on


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("who", [1, *more(0)])
def test_wrong_arguments(name: str, who: int) -> None:
    """One rank errs, says so, calls again as it should, and the job goes on as if nothing had been."""
    call, text = WRONG[name]

    def program(comm: Any) -> str:
        said = ""
        if comm.rank == who:
            try:
                call(comm)
                said = "no error"
            except hocket.ArgumentError as error:
                said = str(error)
        assert comm.allreduce(np.arange(5.0) + comm.rank).tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
        y = np.empty(3, int)
        comm.sendrecv(np.full(3, comm.rank), (comm.rank + 1) % 3, y, (comm.rank - 1) % 3)
        assert y.tolist() == [(comm.rank - 1) % 3] * 3
        return said

    with hocket.local_world(3) as world:
        said = world.run(program)[who]
    assert re.search(text, said), said


def every_call(comm: Any) -> list[Callable[[], Any]]:
    x = np.ones(6)
    return [
        lambda: comm.allreduce(x), lambda: comm.broadcast(x), lambda: comm.barrier(), lambda: comm.allgather(x),
        lambda: comm.send(x, 1), lambda: comm.recv(x, 1), lambda: comm.split(0), lambda: comm.dup(),
        lambda: comm.allreduce(x, async_op=True), lambda: comm.alltoall(x), lambda: comm.scan(x),
    ]  # fmt: skip


def test_after_close() -> None:
    with hocket.local_world(2) as world:
        inner = world.run(lambda comm: comm.dup())
        world.run(lambda comm: inner[comm.rank].allreduce(np.ones(6)))
        world.run(lambda comm: inner[comm.rank].close())
        for call in every_call(inner[0]):
            with pytest.raises(hocket.ArgumentError, match="communicator 'world/1.0' is closed"):
                call()
        inner[0].close()  # again, harmless
        world.run(lambda comm: comm.allreduce(np.ones(3)))


def test_after_an_error() -> None:
    """The first error is repeated, of the same class and with the same particulars."""

    def program(comm: Any) -> None:
        with pytest.raises(hocket.MismatchError) as first:
            comm.allreduce(np.ones(3 + comm.rank))
            comm.barrier()
        for call in every_call(comm):
            with pytest.raises(hocket.MismatchError) as later:
                call()
            assert str(later.value) == str(first.value) and later.value.calls == first.value.calls

    hocket.local_world(2).run(program)


def test_after_giving_up() -> None:
    world = hocket.local_world(2)
    with pytest.raises(ValueError, match="mine"):
        world.run(lambda comm: (_ for _ in ()).throw(ValueError("mine")) if comm.rank else comm.barrier())
    for call in every_call(world.comms[0]):
        with pytest.raises(hocket.PeerLostError, match="rank 1 failed: ValueError: mine"):
            call()
    for call in every_call(world.comms[1]):
        with pytest.raises(hocket.PeerLostError, match="failed.*: ValueError: mine"):
            call()


def test_no_default_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "_process", None)  # that of another test, which has left its job
    with pytest.raises(hocket.ArgumentError, match="call hocket.init"):
        hocket.allreduce(np.ones(3))


APART = """
import os, hocket
try:
    hocket.init(transport=os.environ["TRANSPORTS"].split(";")[int(os.environ["HOCKET_RANK"])], timeout=60)
except hocket.MismatchError as why:
    print(sorted(why.calls.items()), why)
"""


@pytest.mark.parametrize("transports", ["shm;tcp", "tcp,shm;shm,tcp", "shm;shm,tcp"])
def test_ranks_that_name_different_transports(transports: str) -> None:
    one, other = (each.replace(",", ", ") for each in transports.split(";"))
    for told in jobs.run(2, APART, TRANSPORTS=transports):
        assert f"rank 0 {one}, rank 1 {other}: HOCKET_TRANSPORT, init(transport=)" in told
        assert str([(0, f"transports {one}"), (1, f"transports {other}")]) in told
