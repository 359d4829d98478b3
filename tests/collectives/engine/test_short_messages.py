"""Messages of a known kind take the short way; everything else takes the general one, and means the same."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError, TimeoutError
from support.worlds import spread

X = np.arange(6.0)


class General(Exception):
    """The general way was taken."""


def closed(comm: Communicator) -> None:
    """From now on the general way raises."""

    def refuse(*args: Any) -> None:
        raise General

    comm.messenger.exchange = refuse  # type: ignore[method-assign]


def known_kinds(comm: Communicator) -> None:
    me, other, out = comm.rank, 1 - comm.rank, np.zeros(6)
    fixed = np.zeros(6)
    fixed.flags.writeable = False
    for _ in range(2):  # the first makes the plans
        comm.sendrecv(X + me, other, out, other)
        comm.send(X, other)
        comm.recv(out, other)
        comm.send(X, other)
        comm.recv(out, None)
        comm.recv(np.zeros((2, 3), np.int32), comm.rank) if comm.send(np.ones((2, 3), np.int32), me) else None
        comm.recv(np.zeros((2, 3), np.int32), me)
    general = comm.messenger.exchange
    closed(comm)
    for tag in (0, 7, 2**31 - 1):
        assert comm.sendrecv(X + me, other, out, other, tag) is out and (out == X + other).all()
        assert comm.send(X * tag, other, tag) is None
    for tag in (2**31 - 1, 0, 7):  # in another order than they were sent
        assert comm.recv(out, other, tag) is out and (out == X * tag).all()
    for source, wanted in ((other, 1), (None, 2), (None, None)):
        comm.send(X, other, 1 if wanted is None else wanted)
        assert comm.recv(out, source, wanted) is out
    comm.send(X, other, 9)
    work = comm.recv(out, None, None, async_op=True)
    assert work.wait() and (work.source, work.tag) == (other, 9)
    works = [comm.recv(np.zeros(6), other, tag, async_op=True) for tag in range(5)]
    works += [comm.send(X * tag, other, tag, async_op=True) for tag in (4, 3)]
    for tag in (2, 1, 0):  # with works under way a blocking one queues behind them
        comm.send(X * tag, other, tag)
    assert all((work.result() == X * tag).all() for tag, work in enumerate(works[:5]))
    assert works[5].result() is None and works[6].wait()
    for call in (
        lambda: comm.send(X[:5], other), lambda: comm.send(X.astype(int), other), lambda: comm.send(X[::2], other),
        lambda: comm.send(X.reshape(2, 3), other), lambda: comm.recv(fixed, other), lambda: comm.recv(X[:5], None),
        lambda: comm.send(X, other, async_op=True, timeout=60.0), lambda: comm.send(X, other, timeout=60.0),
        lambda: comm.send(X, np.int64(other)), lambda: comm.recv(out, other, transport="threads"),
        lambda: comm.sendrecv(X, other, np.zeros(5), other), lambda: comm.send(list(X), other),
    ):  # fmt: skip
        with pytest.raises(General):
            call()
    with hocket.group(), pytest.raises(General):
        comm.send(X, other)
    comm.messenger.exchange = general  # type: ignore[method-assign]
    for tag in (-1, 2**31, 2**70, "a", None):
        with pytest.raises(ArgumentError, match="tag="):
            comm.send(X, other, tag)  # type: ignore[arg-type]


def apart(comm: Communicator) -> None:
    """x and out of a sendrecv."""
    both, other = np.zeros(12), 1 - comm.rank
    for _ in range(2):
        comm.sendrecv(both[:6], other, both[6:], other)
        for out in (both[:6], both[3:9]):
            with pytest.raises(ArgumentError, match="out overlaps x; sendrecv needs separate memory"):
                comm.sendrecv(both[:6], other, out, other)


def negated(comm: Communicator) -> None:
    """A lazy tensor's memory holds other values than it."""
    torch = pytest.importorskip("torch")
    other, x = 1 - comm.rank, torch.full((3,), 2)
    out = torch.empty_like(x)
    for _ in range(2):
        comm.sendrecv(x, other, out, other)
        comm.allreduce(x.clone())
        lazy = torch._neg_view(x)
        for call in (lambda lazy=lazy: comm.sendrecv(lazy, other, out, other), lambda lazy=lazy: comm.allreduce(lazy)):
            with pytest.raises(ArgumentError, match="negated"):
                call()


def an_earlier_recv_goes_first(comm: Communicator) -> None:
    """A queued recv of the same tag gets the earlier message, though the later recv could take the short way."""
    other, first, second = 1 - comm.rank, np.zeros(6), np.zeros(6)
    for _ in range(20):
        work = comm.recv(first, other, async_op=True)
        comm.send(X, other)
        comm.send(X + 1, other)
        comm.recv(second, other)
        work.wait()
        assert (first == X).all() and (second == X + 1).all()


@pytest.mark.parametrize("transport", ["threads", "shm", "tcp"])
def test_what_is_known_and_what_is_not(transport: str) -> None:
    spread([known_kinds, an_earlier_recv_goes_first, apart], 2, transport)


def test_lazy_tensors() -> None:
    hocket.local_world(2).run(negated)


def test_a_refused_call_keeps_no_arrays() -> None:
    """On a communicator that has failed."""

    def program(comm: Communicator) -> None:
        x, other = np.ones(3), 1 - comm.rank
        for _ in range(2):
            comm.sendrecv(x, other, np.empty(3), other)
            comm.send(x, other)
            comm.recv(np.empty(3), other)
            comm.allreduce(x)
        with pytest.raises(MismatchError):
            comm.allreduce(np.ones(3 + comm.rank))
        before = sys.getrefcount(x)
        for _ in range(20):
            for call in (
                lambda: comm.allreduce(x), lambda: comm.send(x, other),
                lambda: comm.sendrecv(x, other, np.empty(3), other),
            ):  # fmt: skip
                with pytest.raises(MismatchError):
                    call()
        gc.collect()  # errors' frames
        assert sys.getrefcount(x) < before + 10

    hocket.local_world(2).run(program)


def test_a_wrong_message_is_told_as_by_the_general_way() -> None:
    def program(comm: Communicator) -> str:
        out, other = np.zeros(6), 1 - comm.rank
        for _ in range(3):
            comm.sendrecv(X, other, out, other)
            comm.send(X.astype(int), other)
            comm.recv(np.zeros(6, int), other)
            comm.send(X, other, 5)
            comm.recv(out, other, 5)
        comm.send(X.astype(int) if comm.rank else X, other, 5)
        with pytest.raises(MismatchError) as why:
            if comm.rank:
                comm.barrier()
            else:
                comm.recv(out, other, 5)
        return str(why.value)

    for said in hocket.local_world(2).run(program):
        assert "recv(float64[6], source=1, tag=5)" in said and "48 bytes of int64 from rank 1" in said


def test_the_time_limit_counts() -> None:
    def program(comm: Communicator) -> None:
        out = np.zeros(6)
        for _ in range(3):
            comm.send(X, 0)
            comm.recv(out, 0)
        comm.set_timeout(0.2)
        with pytest.raises(TimeoutError, match=r"recv\(float64\[6\], source=0"):
            comm.recv(out, 0)

    hocket.local_world(1).run(program)
