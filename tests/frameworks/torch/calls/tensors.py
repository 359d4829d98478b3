"""Tensors that are not plain memory, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from calls import checks
from calls.checks import check, equal


@check
def what_is_refused() -> None:
    """With an error on this rank, before anything is sent."""
    p, rank = dist.get_world_size(), dist.get_rank()
    freed = torch.ones(1000)
    dist.all_reduce(freed)
    freed.untyped_storage().resize_(0)
    x, one, three = torch.ones(2), torch.zeros(1), torch.zeros(3)
    for what, call in {
        f"{p + 1} tensors": lambda: dist.all_gather([torch.zeros(2) for _ in range(p + 1)], x),
        "no memory": lambda: dist.all_reduce(freed),
        "storage was freed": lambda: dist.all_reduce(torch._efficientzerotensor(3)),
        "share memory": lambda: dist.all_reduce(torch.zeros(1).expand(4)),
        "expected 2": lambda: dist.group.WORLD.gather([[one, three, one][:p]], [x], _at(rank)),
        "expected 3": lambda: dist.group.WORLD.scatter([three], [[one, three, one][:p]], _at(rank)),
    }.items():
        with pytest.raises(ValueError, match=what):
            call()
    dist.barrier()


def _at(rank: int) -> Any:
    options = dist.GatherOptions()
    options.rootRank = rank
    return options


@check
def sparse() -> None:
    p, rank = dist.get_world_size(), dist.get_rank()
    places = torch.tensor([[0, rank + 1, rank + 1]])
    x = torch.sparse_coo_tensor(places, torch.ones(3, 2), (p + 2, 2), check_invariants=True)
    wanted = x.to_dense()
    dist.all_reduce(wanted, group=checks.gloo)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each rank would print it
        dist.all_reduce(x)
    equal(x.to_dense(), wanted, "sparse")
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32):
        places, values = torch.tensor([[0, rank], [rank, 1]]), torch.tensor([1, 2]).to(dtype)
        given = torch.sparse_coo_tensor(places, values, (p, p + 1), check_invariants=True)
        wanted = torch.zeros(p, p + 1, dtype=dtype)
        for r in range(p):
            wanted[0, r] += 1
            wanted[r, 1] += 2
        dist.all_reduce(given)
        assert given.dtype == dtype and torch.equal(given.to_dense(), wanted), dtype
    with pytest.raises(RuntimeError, match="SUM or AVG"):
        dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.MAX)
    with pytest.raises(TypeError, match="to_dense"):
        dist.broadcast(torch.eye(3).to_sparse(), 0)


@check
def tensors_without_memory() -> None:
    """Refused before anything is sent: the others are not disturbed."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.tensor import DTensor, Replicate

    with FakeTensorMode():
        fake = torch.ones(3)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for odd in (fake, DTensor.from_local(torch.ones(3), mesh, [Replicate()]), torch.ones(3, device="meta")):
        for name, call in {"all_reduce": dist.all_reduce, "broadcast": lambda x: dist.broadcast(x, 0),
                           "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(torch.empty(9), x)}.items():
            with pytest.raises(TypeError, match=name):
                call(odd)
    with pytest.raises(TypeError, match="to_local"):
        dist.group.WORLD.send([DTensor.from_local(torch.ones(3), mesh, [Replicate()])], 0, 0)
    dist.barrier()


def freed(x: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory was given back, as FSDP leaves it."""
    x.untyped_storage().resize_(0)
    return x


def cut(x: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(x.untyped_storage().nbytes() - 8)
    return x


@check
def tensors_that_cannot_be_sent() -> None:
    """Refused as inputs and as outputs of every call, by an error: a quantised or freed one has ended the process."""
    p, rank, group, comm = dist.get_world_size(), dist.get_rank(), dist.group.WORLD, dist.group.WORLD.comm
    plain, long = torch.ones(4), torch.ones(4 * p)
    whole = torch.ones(4, 1)
    odd = {
        "quantised": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        "quantised by channel": torch.quantize_per_channel(whole, plain, torch.zeros(4), 0, torch.quint8),
        "freed": freed(torch.ones(4)),
        "freed and strided": freed(torch.ones(8)[::2]),
        "cut and strided": cut(torch.ones(8)[::2]),
        "zeros": torch._efficientzerotensor(4),  # type: ignore[attr-defined]
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(2)]),
        "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(2)], layout=torch.jagged),
        "csr": torch.ones(2, 2).to_sparse_csr(),
        "mkldnn": plain.to_mkldnn(),
        "meta": torch.ones(4, device="meta"),
    }
    for name, x in odd.items():
        calls: list[Callable[[], Any]] = [
            lambda x=x: group.allreduce([x]), lambda x=x: group.allreduce_coalesced([x, x]),
            lambda x=x: group.reduce([x]), lambda x=x: group.broadcast([x]),
            lambda x=x: group.allgather([[x] * p], [plain]), lambda x=x: group.allgather([[plain] * p], [x]),
            lambda x=x: group.all_gather_single(x, plain), lambda x=x: group.all_gather_single(long, x),
            lambda x=x: group.reduce_scatter([x], [[plain] * p]), lambda x=x: group.reduce_scatter([plain], [[x] * p]),
            lambda x=x: group.reduce_scatter_single(x, long), lambda x=x: group.reduce_scatter_single(plain, x),
            lambda x=x: group.alltoall([x] * p, [plain] * p), lambda x=x: group.alltoall([plain] * p, [x] * p),
            lambda x=x: group.all_to_all_single(x, plain, [], []),
            lambda x=x: group.all_to_all_single(plain, x, [], []),
            lambda x=x: group.gather([], [x]), lambda x=x: group.gather_single(long, x),
            lambda x=x: group.scatter([x], [[plain] * p]), lambda x=x: group.send([x], 0),
            lambda x=x: group.recv([x], 0), lambda x=x: group.recv_anysource([x]),
            lambda x=x: comm.allreduce(x), lambda x=x: comm.allgather(x), lambda x=x: comm.broadcast(x, rank),
            lambda x=x: comm.alltoall(x), lambda x=x: comm.reduce_scatter(x), lambda x=x: comm.send(x, 0),
            lambda x=x: comm.recv(x, 0), lambda x=x: comm.allreduce(plain, out=x),
        ]  # fmt: skip
        if rank == 0:
            calls += [lambda x=x: group.gather([[x] * p], [plain]), lambda x=x: group.scatter([plain], [[x] * p])]
        for number, call in enumerate(calls):
            try:
                call()
            except (TypeError, ValueError, RuntimeError) as error:
                assert len(str(error)) > 20, (name, number)
            else:
                raise AssertionError(f"{name}: call {number} was not refused")
    dist.all_reduce(plain)
    assert plain.tolist() == [p] * 4, "nothing was sent"


@check
def lazy_views() -> None:
    """Conjugated and negated views hold other values than they show."""
    p = dist.get_world_size()
    x = torch.full((p,), 1 + 2j).conj()
    out = torch.empty(p, dtype=torch.complex64).conj()
    dist.group.WORLD.all_to_all_single(out, x, [], []).wait()  # torch's own function refuses them
    assert x.is_conj() and out.is_conj() and out.tolist() == [1 - 2j] * p
    z = torch.tensor([1 + 2j]).conj().imag
    assert z.is_neg()
    dist.all_reduce(z)
    assert z.tolist() == [-2 * p]


@check
def dtypes_that_torch_cannot_copy() -> None:
    """In lists, and strided: their bytes are moved."""
    p, rank = dist.get_world_size(), dist.get_rank()

    def made(k: int, dtype: torch.dtype) -> torch.Tensor:
        return (torch.arange(16, dtype=torch.uint8) + k).view(dtype)

    for dtype in (torch.uint4, torch.int2, torch.quint8, torch.qint32, torch.bits16):
        outs, crossed, dealt = [made(99, dtype) for _ in range(p)], [made(99, dtype) for _ in range(p)], made(99, dtype)
        strided = made(rank, dtype)[::2]
        dist.all_gather(outs, made(rank, dtype))
        dist.all_to_all(crossed, [made(k, dtype) for k in range(p)])
        dist.scatter(dealt, [made(k, dtype) for k in range(p)] if rank == 0 else None)
        dist.broadcast(strided, p - 1)
        size = dtype.itemsize
        wanted = [made(k, dtype).view(torch.uint8).tolist() for k in range(p)]
        assert [out.view(torch.uint8).tolist() for out in outs] == wanted, dtype
        assert [out.view(torch.uint8).tolist() for out in crossed] == [wanted[rank]] * p, dtype
        assert dealt.view(torch.uint8).tolist() == wanted[rank], dtype
        kept = torch.as_strided(strided, (16 // size,), (1,)).view(torch.uint8).view(-1, size).tolist()
        of = [made(k, dtype).view(torch.uint8).view(-1, size).tolist() for k in (rank, p - 1)]
        assert kept == [of[1][i] if i % 2 == 0 else of[0][i] for i in range(16 // size)], dtype


@check
def tensors_of_inference_mode() -> None:
    """They are written to in place outside of it too, strided ones as well."""
    p = dist.get_world_size()
    with torch.inference_mode():
        x = torch.ones(8)
    for each in (x, x[::2], x.view(2, 4).t()):
        before = each.clone()
        dist.all_reduce(each)
        assert torch.equal(each, before * p)
