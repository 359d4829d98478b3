"""Calls that are prepared once, and made again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError, MismatchError
from support.worlds import same, spread

Array = np.ndarray[Any, Any]


def each_gives_what_the_call_gives(comm: Communicator) -> None:
    """With every kind of output, again and again, and asynchronously."""
    p, r = comm.size, comm.rank
    for x in (np.arange(2.0 * p) + r, torch.arange(2.0 * p) + r):
        for collective, how in (
            ("allreduce", {"op": "max", "out": x * 0}), ("reduce", {"root": p - 1}), ("reduce_scatter", {}),
            ("allgather", {}), ("gather", {"root": 0}), ("scatter", {"root": p - 1}), ("alltoall", {}),
            ("allreduce", {"op": "avg", "out": x * 0, "algorithm": "direct", "order": "rank"}),
            ("scan", {"out": x * 0}), ("exscan", {"out": x * 0}),
        ):
            call = comm.prepare(collective, x, **how)
            for turn in range(4):
                x += turn
                right = getattr(comm, collective)(x, **how)
                right = None if right is None else np.asarray(right).copy()
                made = call() if turn % 2 else call.start().result()
                if collective == "exscan" and r == 0:
                    continue
                assert (made is None) == (right is None)
                if made is not None and right is not None:
                    same(np.asarray(made), right, f"{collective} {how}, turn {turn}")
                if "out" in how:
                    assert made is how["out"]


def in_place(comm: Communicator) -> None:
    x = np.ones(3)
    total, spread_out = comm.prepare("allreduce", x), comm.prepare("broadcast", x, root=comm.size - 1)
    for turn in range(1, 4):
        assert total() is x and (x == comm.size**turn).all()
    x[:] = comm.rank
    assert spread_out() is x and (x == comm.size - 1).all()


def some_prepare_and_others_do_not(comm: Communicator) -> None:
    x = np.ones(5)
    call = comm.prepare("allreduce", x)
    for turn in range(1, 4):
        if comm.rank % 2:
            call()
        else:
            comm.allreduce(x)
        assert (x == comm.size**turn).all()


def messages(comm: Communicator) -> None:
    """Round the ring, by every way to wait; whoever does not prepare is served too."""
    p, r = comm.size, comm.rank
    right, left = (r + 1) % p, (r - 1) % p
    x, y = np.zeros(4), np.zeros(4)
    send, both = comm.prepare("send", x, dest=right, tag=3), comm.prepare("sendrecv", x, y, dest=right, source=left)
    assert repr(both) == f"{comm!r}.prepare('sendrecv')"
    for recv in (comm.prepare("recv", out=y, source=left, tag=3), comm.prepare("recv", out=y, tag=None)):
        for turn in range(4):
            x[:] = 10 * r + turn
            waiting = recv.start() if turn % 2 else None
            assert (send() if turn < 2 else send.start().result()) is None
            assert (recv() if waiting is None else waiting.result()) is y and (y == 10 * left + turn).all()
            assert waiting is None or (waiting.source, waiting.tag) == (left, 3)
            assert both() is y if r else comm.sendrecv(x, right, y, left) is y
            comm.barrier()
    with hocket.group():
        recv()
        send()
    assert (y == x - 10 * r + 10 * left).all()


def in_a_group(comm: Communicator) -> None:
    """Calls of a group begin together at its end, those that are prepared too."""
    x, y = np.ones(4), np.full(4, 2.0)
    calls = [comm.prepare("allreduce", each) for each in (x, y)]
    for _ in range(3):
        x[:], y[:] = 1, 2
        with hocket.group():
            for call in calls:
                call()
        assert (x == comm.size).all() and (y == 2 * comm.size).all()


def memory_that_moves(comm: Communicator) -> None:
    """A tensor may get other memory, or another length: then it is looked at as if it were new."""
    x = torch.ones(4)
    call = comm.prepare("allreduce", x)
    call()
    call()
    x.data = torch.full((9,), 3.0)
    assert call() is x and (x == 3 * comm.size).all()
    x.data = torch.full((9,), 5.0)
    assert call() is x and (x == 5 * comm.size).all()


def other_kinds_of_arrays(comm: Communicator) -> None:
    """Arrays that the short way does not know go the general one each time."""
    x = bytearray(8)
    call = comm.prepare("broadcast", x)
    for turn in range(3):
        x[:] = bytes([turn if comm.rank == 0 else 9]) * 8
        assert call() is x and bytes(x) == bytes([turn]) * 8


def wrong(comm: Communicator) -> None:
    for make, text in (
        (lambda: comm.prepare("allsum", np.ones(1)), "'allsum' is not a collective"),
        (lambda: comm.prepare("allreduce", 3.0), "x is a number"),
        (lambda: comm.prepare("allreduce", np.ones(1), op="no")(), "no"),
        (lambda: comm.prepare("allgather", [1])(), "x is a list"),
        (lambda: comm.prepare("allreduce", np.ones(1), tag=1), "takes no dest, source or tag"),
        (lambda: comm.prepare("recv", out=np.ones(1), root=1), "takes no op, root"),
        (lambda: comm.prepare("send", np.ones(1))(), "dest=None"),
        (lambda: comm.prepare("send", np.ones(1), dest=0, tag=None)(), "tag=None"),
    ):
        with pytest.raises(ArgumentError, match=text):
            make()
    assert "prepare('allreduce')" in repr(comm.prepare("allreduce", np.ones(1)))


def ranks_that_differ(comm: Communicator) -> None:
    x = np.ones(4)
    call = comm.prepare("allreduce", x)
    call()
    call()
    with pytest.raises(MismatchError, match="test_prepared"):
        if comm.rank == 0:
            call()
        else:
            comm.allgather(x)


CHECKS = (
    each_gives_what_the_call_gives, in_place, some_prepare_and_others_do_not, messages, in_a_group, memory_that_moves,
    other_kinds_of_arrays, wrong, ranks_that_differ,
)  # fmt: skip


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (2, "shm"), (3, "tcp")])
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS if size > 1 else CHECKS[:-1], size, transport)
