"""Tensors that are not plain memory, what is refused, and what the profiler sees."""

from __future__ import annotations

import warnings
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
def profiled() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        dist.all_reduce(torch.ones(2))
        dist.all_gather([torch.empty(2) for _ in range(dist.get_world_size())], torch.ones(2))
    names = {each.key for each in seen.key_averages()}
    assert {"hocket:all_reduce", "hocket:all_gather"} <= names, names


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
