"""torch CPU tensors, other kinds of arrays, and memory that the local ranks share (hocket.empty)."""

from __future__ import annotations

import array
import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import DTYPES
from support.cases import more
from support.worlds import same, spread

TENSORS = [(row, getattr(torch, row.torch.removeprefix("torch."))) for row in DTYPES if row.torch]


def bits(x: torch.Tensor) -> bytes:
    return bytes(x.contiguous().view(torch.uint8).numpy().tobytes())


def every_dtype(comm: Communicator) -> None:
    """In place, out and new results, with torch's own arithmetic as the judge where the values are exact."""
    for row, dtype in TENSORS:
        rows = [((torch.arange(300) + r) % 3).to(dtype) for r in range(comm.size)]
        wide = torch.complex128 if row.kind == "complex" else torch.float64
        added = sum((x.to(wide) for x in rows), torch.zeros(300, dtype=wide))
        want = (added != 0).to(dtype) if row.kind == "bool" else added.to(dtype)
        mine = rows[comm.rank]
        x = mine.clone()
        assert comm.allreduce(x) is x and bits(x) == bits(want), f"allreduce of {dtype}"
        out = torch.empty_like(mine)
        assert comm.allreduce(mine, out=out) is out and bits(out) == bits(want), f"allreduce of {dtype} to out"
        assert bits(mine) == bits(rows[comm.rank])
        new = comm.allgather(mine)
        assert type(new) is torch.Tensor and new.dtype == dtype and bits(new) == b"".join(map(bits, rows)), str(dtype)
        part = comm.reduce_scatter(mine.repeat(comm.size))
        assert type(part) is torch.Tensor and part.dtype == dtype and bits(part) == bits(want), (
            f"reduce_scatter of {dtype}"
        )
        moved = comm.broadcast(mine.clone(), comm.size - 1)
        assert bits(moved) == bits(rows[-1]), f"broadcast of {dtype}"


def shapes(comm: Communicator) -> None:
    x = torch.ones(3, 4, 5) * comm.rank
    assert comm.allgather(x).shape == (3 * comm.size, 4, 5)
    assert comm.reduce(x, 0) is None or comm.rank == 0
    scalar = torch.tensor(2.0)
    assert comm.allreduce(scalar) is scalar and scalar.item() == 2 * comm.size
    assert comm.allreduce(torch.empty(0, 7)).shape == (0, 7)
    out = torch.empty(5)
    comm.sendrecv(torch.full((5,), float(comm.rank)), (comm.rank + 1) % comm.size, out, (comm.rank - 1) % comm.size)
    assert (out == (comm.rank - 1) % comm.size).all()
    view = torch.zeros(10, 4)[2:5]  # contiguous, with an offset
    view += 1
    assert (comm.allreduce(view) == comm.size).all()
    with torch.no_grad():
        work = comm.allreduce(torch.ones(1000), async_op=True)
        assert (work.result() == comm.size).all()
    mixed = np.zeros(6, np.float32)
    assert comm.allreduce(torch.ones(6), out=mixed) is mixed and (mixed == comm.size).all()


def refused(comm: Communicator) -> None:
    """Each refusal says what to do, and disturbs nobody."""
    with pytest.raises(ArgumentError, match="to_dense"):
        comm.allreduce(torch.eye(3).to_sparse())
    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(hocket.ArgumentError, match="x is a FakeTensor"):
        comm.allreduce(fake)
    with pytest.raises(ArgumentError, match="meta"):
        comm.allreduce(torch.ones(3, device="meta"))
    with pytest.raises(ArgumentError, match="float32"):
        comm.allreduce(torch.ones(3), out=torch.ones(3, dtype=torch.float64))
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(ArgumentError, match="requires grad"):
        comm.allreduce(leaf)  # in place: autograd would not know
    if comm.size > 1:
        with pytest.raises(ArgumentError, match="requires grad"):
            comm.broadcast(torch.nn.Parameter(torch.ones(3)), (comm.rank + 1) % comm.size)
    assert (leaf == 1).all()
    with torch.no_grad():  # how parameters are synchronised
        assert (comm.allreduce(leaf) == comm.size).all()
    assert (comm.allreduce(leaf.detach()) == comm.size**2).all()
    got = comm.allgather(torch.nn.Parameter(torch.ones(2)))  # only read
    assert type(got) is torch.Tensor and got.tolist() == [1.0] * 2 * comm.size
    conjugate = torch.ones(3, dtype=torch.complex64).conj()
    with pytest.raises(ArgumentError, match="resolve_conj"):
        comm.allreduce(conjugate)
    with pytest.raises(ArgumentError, match="resolve_neg"):
        comm.allreduce(torch._neg_view(torch.ones(3)))
    assert comm.allreduce(torch.ones(1)).item() == comm.size


@pytest.mark.parametrize("check", [every_dtype, shapes, refused])
@pytest.mark.parametrize("size", [1, 3])
def test_tensors(check: Any, size: int) -> None:
    spread(check, size, "threads")


def buffers(comm: Communicator) -> None:
    """Anything with the buffer protocol."""
    text = bytearray(b"abc") if comm.rank == 0 else bytearray(3)
    assert comm.broadcast(text) is text and text == b"abc"
    numbers = array.array("d", [1.0, 2.0]) if comm.rank == 0 else array.array("d", [0.0, 0.0])
    comm.broadcast(numbers)
    assert list(numbers) == [1.0, 2.0]
    comm.allreduce(numbers)
    assert list(numbers) == [comm.size, 2.0 * comm.size]
    view = memoryview(bytearray(8)).cast("i")
    view[0] = comm.rank
    got = comm.allgather(view[:1])
    assert list(got) == list(range(comm.size))
    same(comm.allgather(b"xy"), np.frombuffer(b"xy" * comm.size, np.uint8), "bytes")
    with pytest.raises(ArgumentError, match="read-only"):
        comm.broadcast(b"xyz", (comm.rank + 1) % comm.size)
    for nothing in ([1, 2], "text", None):
        with pytest.raises(ArgumentError, match="buffer protocol"):
            comm.allreduce(nothing)


def test_other_arrays() -> None:
    spread(buffers, 2, "threads")


# ------------------------------------------------------------------------------------------------ shared arrays


def shared(comm: Communicator) -> None:
    """All collectives on hocket.empty: the peers read where it lies, and it may be overwritten right after."""
    p, me = comm.size, comm.rank
    for m in (3, 1000, 50_000):
        n = p * m
        block = slice(me * m, me * m + m)
        x, out, big = hocket.empty(n, np.int64), hocket.zeros(n, np.int64), hocket.empty(p * n, np.int64)
        part = hocket.empty(m, np.int64)
        for turn in range(6):
            rows = [np.arange(n) * (r + 1) + turn for r in range(p)]
            total, root = np.sum(rows, axis=0), turn % p

            def fresh(x: Any = x, rows: Any = rows) -> Any:
                x[:] = rows[me]
                return x

            def spoiled(got: Any, want: Any, what: str, x: Any = x) -> None:
                x[:] = -1  # the call is over: nobody may still read it
                same(got, want, f"{what} of shared {len(x)} elements")

            spoiled(comm.allreduce(fresh(), out=out), total, "allreduce")
            same(comm.allreduce(fresh()), total, "allreduce in place")
            for name in ("ring", "halving_doubling", "tree", "one_shot"):
                spoiled(comm.allreduce(fresh(), out=out, algorithm=name), total, f"allreduce by {name}")
            spoiled(comm.reduce_scatter(fresh(), out=part), total[block], "reduce_scatter")
            spoiled(comm.allgather(fresh(), out=big), np.concatenate(rows), "allgather")
            spoiled(comm.alltoall(fresh(), out=out), np.concatenate([r[block] for r in rows]), "alltoall")
            same(comm.broadcast(fresh(), root), rows[root], "broadcast")
            got = comm.reduce(fresh(), root)
            x[:] = -1
            assert me != root or (got == total).all(), "reduce"
            got = comm.gather(fresh(), root)
            x[:] = -1
            assert me != root or (got == np.concatenate(rows)).all(), "gather"
            spoiled(comm.scatter(fresh(), root, out=part), rows[root][block], "scatter")
            spoiled(comm.scan(fresh(), out=out), np.sum(rows[: me + 1], axis=0), "scan")
            right, left = (me + 1) % p, (me - 1) % p
            comm.sendrecv(fresh(), right, out, left)
            spoiled(out, rows[left], "sendrecv")
            work = comm.allreduce(fresh(), out=out, async_op=True)
            spoiled(work.result(), total, "asynchronous allreduce")
            if me == 0:
                comm.send(fresh(), 1)
            elif me == 1:
                comm.recv(out, 0)
            spoiled(out if me == 1 else 0, rows[0] if me == 1 else 0, "send")


def shared_tensors(comm: Communicator) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e5m2, torch.int64):
        x = hocket.zeros((4, 500), like=torch.empty(0, dtype=dtype))
        assert type(x) is torch.Tensor and x.dtype == dtype and x.shape == (4, 500) and x.is_contiguous()
        x.view(torch.uint8).fill_(comm.rank + 1)
        got = comm.broadcast(x, comm.size - 1)
        assert (got.view(torch.uint8) == comm.size).all(), str(dtype)
    x = hocket.zeros((30_000,), like=torch.empty(0))
    x += comm.rank + 1
    assert (comm.allreduce(x) == comm.size * (comm.size + 1) / 2).all()


def given_back(comm: Communicator) -> None:
    """Dropping an array gives its memory back; views keep it."""
    (transport,) = comm.world.transports.values()
    window = transport.window
    hocket.empty(100_000)
    gc.collect()
    before = window.size
    for i in range(1000):
        x = hocket.empty(100_000)
        x[:] = i
    assert window.size <= before + 2 * 400_000 + 16_384, f"{before} became {window.size}"
    view = x[10:20]
    del x
    gc.collect()
    others = [hocket.zeros(100_000) for _ in range(5)]
    assert (view == 999).all(), "a view lost its memory"
    assert len(others) == 5 and (hocket.zeros(100_000) == 0).all()


def shared_in_every_way(comm: Communicator) -> None:
    shared(comm)
    shared_tensors(comm)
    given_back(comm)


@pytest.mark.parametrize(("size", "transport"), [(3, "threads"), (3, "shm"), *more((2, "shm"))])
def test_shared_arrays(size: int, transport: str) -> None:
    spread(shared_in_every_way, size, transport)


def ordinary(comm: Communicator) -> None:
    assert (comm.allreduce(hocket.zeros(100) + 1) == comm.size).all()
    shared_tensors(comm)


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (2, "tcp")])
def test_without_shared_memory_it_is_ordinary(size: int, transport: str) -> None:
    spread(ordinary, size, transport)


def remembered(comm: Communicator) -> None:
    """A call made before takes a short way, which must see all that the long one refuses or treats otherwise."""
    for _ in range(3):
        assert comm.allreduce(torch.ones(1)).item() == comm.size
        assert comm.allreduce(torch.ones(2, 3), "avg").tolist() == [[1.0] * 3] * 2
        assert comm.reduce_scatter(torch.ones(2 * comm.size, 3)).tolist() == [[comm.size] * 3] * 2
        assert comm.allgather(torch.full((2,), comm.rank)).tolist() == [r for r in range(comm.size) for _ in "ab"]
    with pytest.raises(ArgumentError, match="requires grad"):
        comm.allreduce(torch.ones(1, requires_grad=True))
    with torch.no_grad():
        assert comm.allreduce(torch.ones(1, requires_grad=True)).item() == comm.size
    with pytest.raises(ArgumentError, match="negated view"):
        comm.allreduce(torch.ones(1, dtype=torch.complex64).conj().imag)
    with pytest.raises(ArgumentError, match="sparse"):
        comm.allreduce(torch.ones(1).to_sparse())
    with pytest.raises(ArgumentError, match="not a multiple of"):
        comm.reduce_scatter(torch.ones(3, 2 * comm.size))  # as many elements as before, in other rows
    with pytest.raises(ArgumentError, match="they must be the same"):
        comm.allgather(torch.full((2,), comm.rank), out=torch.empty(2 * comm.size))
    assert comm.allreduce(torch.ones(1, dtype=torch.int32)).dtype == torch.int32
    assert comm.allreduce(torch.ones(2, 0)).shape == (2, 0)
    several = torch.arange(6.0)
    comm.allreduce(several[2:3])
    assert several.tolist() == [0, 1, 2 * comm.size, 3, 4, 5]


@pytest.mark.parametrize("transport", ["threads", "shm"])
def test_what_was_called_before_is_looked_at_again(transport: str) -> None:
    spread(remembered, 2, transport)
