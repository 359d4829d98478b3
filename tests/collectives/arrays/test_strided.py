"""Arrays that are not contiguous: calls work on a copy, and what they give comes back to where it belongs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from support.worlds import same, spread

Views = tuple[Callable[[Any], Any], ...]
VIEWS: Views = (lambda x: x[:, 1], lambda x: x[::2, 1:3], lambda x: x.T, lambda x: x[2:, ::3])
BACKWARDS: Views = (lambda x: x[::-1], lambda x: x[:, ::-2])  # NumPy's only


def memory(like: str, rank: int) -> Any:
    x = np.arange(48.0).reshape(6, 8) + 100 * rank
    return torch.from_numpy(x) if like == "torch" else x


def test_a_mask_is_not_lost_in_silence() -> None:
    def call(comm: Communicator) -> None:
        masked = np.ma.masked_array(np.ones(3), [False, True, False])
        for collective in (comm.allreduce, comm.allgather, comm.broadcast):
            with pytest.raises(ArgumentError, match=r"x is a masked array, .* pass x\.filled\(value\) or x\.data"):
                collective(masked)
        with pytest.raises(ArgumentError, match="out is a masked array"):
            comm.allreduce(np.ones(3), out=masked)
        assert (comm.allreduce(masked.filled(2.0)) == [2, 4, 2]).all()

    hocket.local_world(2).run(call)


def in_place(comm: Communicator) -> None:
    """A view gets the sum, and its neighbours stay."""
    for like, views in (("numpy", VIEWS + BACKWARDS), ("torch", VIEWS)):
        for view in views:
            for how in ({}, {"async_op": True}, {"op": "max"}, {}):
                whole, right = memory(like, comm.rank), memory("numpy", comm.rank)
                every = [memory("numpy", r) for r in range(comm.size)]
                combined = np.max(every, 0) if how.get("op") else np.sum(every, 0)
                view(right)[...] = view(combined)
                mine = view(whole)
                got = comm.allreduce(mine, **how)
                assert (got.result() if how.get("async_op") else got) is mine
                same(np.asarray(whole), right, f"{like} {how}")


def outputs(comm: Communicator) -> None:
    """`out` may be strided, x too, or both; a new result is contiguous."""
    p, r = comm.size, comm.rank
    x = (np.arange(12.0).reshape(6, 2) + r)[:, 0]
    out = np.zeros((6 * p, 3))
    assert comm.allgather(x, out=out[:, 1]) is not None
    same(out[:, 1].copy(), np.concatenate([np.arange(0, 12.0, 2) + q for q in range(p)]), "allgather")
    assert not out[:, 0].any() and not out[:, 2].any()
    made = comm.allgather(x)
    assert made.flags.c_contiguous
    same(made, out[:, 1].copy(), "a new result")
    rows = np.zeros((p, 4)).T + r  # its rows are columns of the memory
    columns = (np.zeros((4, p)) + r).T
    same(comm.alltoall(columns), comm.alltoall(np.ascontiguousarray(columns)), "alltoall")
    same(comm.broadcast(rows, p - 1), np.full((4, p), p - 1.0), "broadcast")
    got = comm.reduce_scatter(np.ones((3, 2 * p)).T)
    same(got, np.full((2, 3), float(p)), "reduce_scatter")


def messages(comm: Communicator) -> None:
    p, r = comm.size, comm.rank
    grid, into = np.arange(20.0).reshape(4, 5) + 100 * r, np.zeros((4, 5))
    work = comm.send(grid[:, 2], (r + 1) % p, async_op=True)
    grid[:, 2] = -1  # it has been copied
    comm.recv(into[:, 4], (r - 1) % p)
    work.wait()
    same(into[:, 4].copy(), np.arange(2.0, 20, 5) + 100 * ((r - 1) % p), "a column")
    assert not into[:, :4].any()
    column = into[:, 0]
    assert comm.sendrecv(np.ones((4, 2))[:, 1], (r + 1) % p, column, (r - 1) % p) is column and into[:, 0].all()


def together(comm: Communicator) -> None:
    x, y = np.ones((5, 2)), torch.ones(5, 2)
    with hocket.group():
        comm.allreduce(x[:, 0])
        comm.allreduce(y[:, 1])
    same(x, np.array([[comm.size, 1.0]] * 5), "in a group")
    same(y.numpy(), np.array([[1.0, comm.size]] * 5, np.float32), "in a group")
    call = comm.prepare("allreduce", x[:, 1])
    for turn in (1, 2, 3):
        call()
        assert (x[:, 1] == comm.size**turn).all() and (x[:, 0] == comm.size).all()


def other_kinds(comm: Communicator) -> None:
    """Buffers; what may not be written is refused as ever."""
    data = bytearray(range(8))
    comm.broadcast(memoryview(data)[::2], 0)
    numbers = np.arange(8, dtype=np.uint8)
    comm.allreduce(memoryview(numbers)[1::2])
    assert numbers.tolist() == [i * (comm.size if i % 2 else 1) for i in range(8)]
    read_only = np.full((4, 3), comm.rank + 1.0)
    read_only.flags.writeable = comm.rank != 0
    learned = torch.full((4, 3), comm.rank + 1.0, requires_grad=comm.rank == 0)
    same(comm.broadcast(read_only[:, 1], 0).copy(), np.ones(4), "a root that may only be read")
    same(comm.broadcast(learned[:, 1], 0).detach().numpy().copy(), np.ones(4, np.float32), "a root that has a gradient")
    same(comm.allgather(read_only[:, 2]), np.repeat(np.arange(1.0, comm.size + 1), 4), "an operand that is only read")
    x = np.ones((4, 4))
    x.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        comm.allreduce(x[:, 1])
    with pytest.raises(ArgumentError, match="read-only"):
        comm.allreduce(np.broadcast_to(np.ones(3), (4, 3)))
    with pytest.raises(ArgumentError, match="requires grad"):
        comm.allreduce(torch.ones(4, 4, requires_grad=True)[:, 1])
    with pytest.raises(ArgumentError, match="negated view"):
        comm.allreduce(torch.ones(4, 4, dtype=torch.complex64).conj().imag)


CHECKS = (in_place, outputs, messages, together, other_kinds)


@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")])
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)
