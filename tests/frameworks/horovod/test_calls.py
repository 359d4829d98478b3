"""The collectives of hvd on 1 to 3 ranks: results, gradients, process sets, join."""

from __future__ import annotations

import pytest

from support import jobs

START = """
import os, sys, time
import torch
import hocket.horovod.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
ranks = range(size)
def refused(kind, call, *args, **more):
    try:
        call(*args, **more)
    except kind as error:
        return str(error)
    raise AssertionError(f"nobody refused {call} {args}")
"""

REDUCTIONS = START + """
x = torch.tensor([rank + 1.0, -rank, 3.0])
every = torch.stack([torch.tensor([r + 1.0, -r, 3.0]) for r in ranks])
for op, want in ((hvd.Sum, every.sum(0)), (hvd.Average, every.mean(0)), (hvd.Min, every.amin(0)),
                 (hvd.Max, every.amax(0)), (hvd.Product, every.prod(0))):
    assert torch.allclose(hvd.allreduce(x, op=op), want), op
assert torch.allclose(hvd.allreduce(x), every.mean(0)) and torch.equal(hvd.allreduce(x, average=False), every.sum(0))
assert x.tolist() == [rank + 1.0, -rank, 3.0]
assert torch.equal(hvd.allreduce(torch.tensor([3, -3]), op=hvd.Sum, prescale_factor=0.5), torch.tensor([1, -1]) * size)
half = hvd.allreduce(torch.ones(3, dtype=torch.float16) * (rank + 1), op=hvd.Sum, postscale_factor=0.5)
assert half.dtype == torch.float16 and half.tolist() == [sum(r + 1 for r in ranks) / 2] * 3
made = hvd.grouped_allreduce([x, torch.tensor([rank]), x.double()], op=hvd.Sum)
assert [each.dtype for each in made] == [torch.float32, torch.int64, torch.float64]
assert torch.equal(made[0], every.sum(0)) and torch.equal(made[2], every.sum(0).double())
assert made[1].item() == sum(ranks)
strided = torch.arange(12.0).reshape(3, 4).t()
assert torch.equal(hvd.allreduce_(strided.clone().t().contiguous().t(), op=hvd.Sum), strided * size)
refused(ValueError, hvd.allreduce, x, average=True, op=hvd.Sum)
refused(ValueError, hvd.allreduce, [1.0])
assert "sparse_allreduce_async" in refused(ValueError, hvd.allreduce, x.to_sparse())
for call in (hvd.allgather, hvd.alltoall, lambda x: hvd.broadcast(x, 0)):
    assert "int_repr" in refused(ValueError, call, torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
assert hvd.allreduce(torch.empty(0)).numel() == 0
big = torch.full((1 << 20,), float(rank))
small = [torch.full((5,), float(rank + i)) for i in range(50)]
handles = [hvd.allreduce_async(each, op=hvd.Sum) for each in [big, *small]]
assert hvd.synchronize(handles[0])[-1] == sum(ranks)
assert all(hvd.synchronize(h).tolist() == [sum(ranks) + i * size] * 5 for i, h in enumerate(handles[1:]))
adasum = hvd.allreduce(torch.tensor([1.0, 0.0]) if rank % 2 else torch.tensor([0.0, 2.0]), op=hvd.Adasum)
assert size == 3 or torch.allclose(adasum, torch.tensor([1.0 if size > 1 else 0.0, 2.0])), adasum

x = torch.ones(2, requires_grad=True)
hvd.allreduce(x * (rank + 1), op=hvd.Sum).sum().backward()
assert x.grad.tolist() == [size * (rank + 1)] * 2
"""

MOVES = START + """
rows = hvd.allgather(torch.full((rank, 2), rank))
assert rows.tolist() == [[r, r] for r in ranks for _ in range(r)]
for dtype in (torch.bool, torch.bfloat16, torch.uint8, torch.complex64):
    assert torch.equal(hvd.allgather(torch.ones(1, 3, dtype=dtype)), torch.ones(size, 3, dtype=dtype))
one, other = hvd.grouped_allgather([torch.tensor([rank]), torch.ones(2, 2)])
assert one.tolist() == list(ranks) and other.shape == (2 * size, 2)
refused(ValueError, hvd.allgather, torch.tensor(1))
x = torch.full((2, 3), float(rank))
last = size - 1
assert hvd.broadcast(x, last).tolist() == [[last] * 3] * 2 and x[0, 0] == rank
assert hvd.broadcast_(x, 0) is x and x.sum() == 0
assert "not one of the ranks" in refused(ValueError, hvd.broadcast, x, size)
send = torch.arange(size * 2).reshape(size, 2) + 100 * rank
assert torch.equal(hvd.alltoall(send), torch.stack([torch.arange(2) + 2 * rank + 100 * r for r in ranks]))
splits = [r + 1 for r in ranks]
got, came = hvd.alltoall(torch.full((sum(splits),), rank), splits)
assert came.tolist() == [rank + 1] * size and got.tolist() == [r for r in ranks for _ in range(rank + 1)]
refused(ValueError, hvd.alltoall, torch.ones(1), [1] * (size + 1))
scattered = hvd.reducescatter(torch.ones(size + 1, 2) * (rank + 1), op=hvd.Sum)
assert scattered.tolist() == [[sum(r + 1 for r in ranks)] * 2] * (2 if rank == 0 else 1)
mean, = hvd.grouped_reducescatter([torch.ones(size)])
assert mean.tolist() == [1.0]
indices = torch.tensor([[0, rank + 1]])
sparse = torch.sparse_coo_tensor(indices, torch.ones(2, 3), (size + 1, 3), check_invariants=True)
assert hvd.sparse_allreduce_async(sparse, "s", hvd.Sum)().to_dense()[:, 0].tolist() == [size, *[1.0] * size]
got = hvd.sparse_allreduce_async(sparse.to(torch.bfloat16), "s", hvd.Average)()
assert got.is_coalesced() and got.to_dense()[:, 0].tolist() == [1.0, *[float(torch.tensor(1 / size).bfloat16())] * size]
assert hvd.broadcast_object({"of": rank}, root_rank=last) == {"of": last}
assert hvd.allgather_object(("r", rank)) == [("r", r) for r in ranks]
assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank, size, 0, 1)
assert hvd.is_homogeneous() and not hvd.nccl_built() and not hvd.gloo_built() and not hvd.mpi_enabled()

x = torch.full((2,), 1.0, requires_grad=True)
hvd.broadcast(x, 0).sum().backward()
assert x.grad.tolist() == ([1, 1] if rank == 0 else [0, 0])
x = torch.ones(rank + 1, requires_grad=True)
(hvd.allgather(x) * (rank + 1)).sum().backward()
assert torch.allclose(x.grad, torch.full((rank + 1,), sum(r + 1 for r in ranks) / size))
"""


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.more), 2, 3])
def test_reductions(size: int) -> None:
    jobs.run(size, REDUCTIONS, 60)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.more), 2, 3])
def test_moves(size: int) -> None:
    jobs.run(size, MOVES, 60)


def test_process_sets() -> None:
    source = START + """
low, all_but_0 = hvd.ProcessSet([1, 0]), hvd.ProcessSet([1, 2])
hvd.shutdown()
hvd.init(process_sets=[low])
assert low.ranks == [0, 1] and low.process_set_id == 1 and low.size() == 2 and low.included() == (rank < 2)
assert hvd.add_process_set(all_but_0) is all_but_0 and all_but_0.process_set_id == 2
for each in (low, all_but_0):
    if each.included():
        assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=each).item() == sum(each.ranks)
        assert hvd.broadcast(torch.tensor([rank]), each.ranks[1], process_set=each).item() == each.ranks[1]
        assert hvd.allgather(torch.tensor([rank]), process_set=each).tolist() == each.ranks
        assert each.rank() == each.ranks.index(rank)
        hvd.barrier(each)
    else:
        assert "not part of" in refused(ValueError, hvd.allreduce, torch.ones(1), process_set=each)
        refused(ValueError, each.rank)
assert "already" in refused(ValueError, hvd.add_process_set, [0, 1])
assert "job of 3 ranks" in refused(ValueError, hvd.add_process_set, [3])
assert "rank 1 adds [1, 2]" in refused(ValueError, hvd.add_process_set, [0, rank]) if rank == 0 else (
    refused(ValueError, hvd.add_process_set, [1, 2]))
assert hvd.remove_process_set(low) and low.process_set_id is None and not hvd.remove_process_set(low)
assert not hvd.remove_process_set(hvd.global_process_set)
assert "not registered" in refused(ValueError, hvd.allreduce, torch.ones(1), process_set=low)
assert hvd.add_process_set([0, 1]).process_set_id == 3
assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum).item() == 3
hvd.shutdown()
assert all_but_0.process_set_id is None
"""
    jobs.run(3, source, 60)


def test_join() -> None:
    source = START + """
for turn in range(3):
    for batch in range(rank + 1):
        handles = [hvd.allreduce_async(torch.ones(3), name=name, op=hvd.Sum) for name in "ab"]
        for handle in handles:
            assert hvd.synchronize(handle).tolist() == [size - batch] * 3
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [size - batch] * 2
    assert hvd.join() == size - 1
    assert hvd.allgather(torch.tensor([rank])).tolist() == list(ranks)
"""
    jobs.run(3, source, 60)


def test_many_threads_submit_at_once() -> None:
    source = START + """
import threading
def work(thread):
    for i in range(30):
        got = hvd.allreduce(torch.full((3,), float(i)), name=f"{thread}", op=hvd.Sum)
        assert got.tolist() == [i * size] * 3
threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
for each in threads: each.start()
for each in threads: each.join()
"""
    jobs.run(2, source, 60)


MORE = [pytest.param(name, marks=pytest.mark.more) for name in ("none", "bf16", "fp8", "int4", "sign")]


@pytest.mark.parametrize("codec", ["fp16", "int8", *MORE])
def test_fewer_bits(codec: str) -> None:
    source = START + f"compression = hvd.Compression.{codec}\n" + """
torch.manual_seed(rank)
x = torch.randn(1000)
got = hvd.allreduce(x, op=hvd.Average, compression=compression)
want = hvd.allreduce(x)
assert got.dtype == torch.float32
off = float((got - want).norm() / want.norm())
assert off < {"none": 1e-6, "fp16": 2e-3, "bf16": 1e-2, "int8": 0.05, "fp8": 0.1, "int4": 0.3, "sign": 1.5}[CODEC], off
assert (off > 0) == (CODEC != "none")
whole = hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, compression=compression)
assert whole.dtype == torch.int64 and whole.item() == 1
""".replace("CODEC", repr(codec))
    jobs.run(2, source, 60)


def test_a_method_with_error_feedback() -> None:
    source = START + """
method = hvd.Compression.method("topk:0.5")
x = torch.tensor([3.0, 1.0])
assert [hvd.allreduce(x, name="w", compression=method).tolist() for _ in range(2)] == [[3.0, 0.0], [3.0, 0.0]]
refused(ValueError, hvd.Compression.method, "no such method")
refused(ValueError, hvd.allreduce, x, op=hvd.Max, compression=method)
"""
    jobs.run(2, source, 60)


METHODS = START + """
import gc, hocket
from hocket.compression import Compressor
from hocket.compression.entries import KeyEntry
def kept(kind):
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())
half = hvd.Compression.method("topk:0.5")
for shape, want in (((10,), 5), ((10,), 10), ((12,), 6), ((3, 4), 6), ((10,), 5)):     # the second has what is owed
    assert hvd.allreduce(torch.ones(shape), name="m", op=hvd.Average, compression=half).sum() == want, shape
assert hvd.allreduce(torch.ones(3), name="other").tolist() == [1.0] * 3
assert kept(KeyEntry) == 1
for turn in range(5):
    assert hvd.allreduce(torch.ones(10), compression=half).sum() == 5
    assert sum(each.sum() for each in hvd.grouped_allreduce([torch.ones(4)] * 2, compression=half)) == 4
    made = hvd.add_process_set([1])
    if rank == 1:
        hvd.allreduce(torch.ones(10), name="m", process_set=made, compression=half)
        assert kept(KeyEntry) == 2 and kept(Compressor) == 2
    assert hvd.remove_process_set(made)
with hocket.group():    # of hocket's calls: Horovod's are none of it
    assert hvd.allreduce(torch.ones(10), compression=half).sum() == 5
    assert hvd.allgather_object([rank]) == [[0], [1]]
assert (kept(KeyEntry), kept(Compressor), kept(hvd.ProcessSet)) == (1, 1, 2)   # `made`, and that of all ranks
"""


def test_what_a_method_owes_goes_with_its_name_shape_and_set() -> None:
    jobs.run(2, METHODS, 40)


LAWS = START + """
from hocket.extending import ADJOINTS
from hocket.torch import functions
from hocket.horovod.job import current
comm = current().comm.dup()
n = 2 * size
x = torch.arange(1.0, 3 * n + 1).reshape(n, 3) * (rank + 1)
weight = torch.arange(3.0 * n * size).reshape(n * size, 3) + rank
ways = {     # of ours: Horovod's call, and its gradient in ours
    "allreduce": (functions.allreduce, lambda x: hvd.allreduce(x, op=hvd.Sum), 1),
    "allgather": (functions.allgather, hvd.allgather, 1 / size),
    "broadcast": (functions.broadcast, lambda x: hvd.broadcast(x, 0), 1 / size),
    "alltoall": (functions.alltoall, hvd.alltoall, 1),
    "reduce_scatter": (functions.reduce_scatter, lambda x: hvd.reducescatter(x, op=hvd.Sum), size),
}
assert set(ways) == set(ADJOINTS) - {"reduce", "gather", "scatter"}      # which Horovod does not have
for name, (ours, theirs, factor) in ways.items():
    found = []
    for call in (ours, theirs):
        own = x.clone().requires_grad_()
        result = call(own, comm=comm) if call is ours else call(own)
        (result * weight[: len(result)]).sum().backward()
        found.append((result.detach(), own.grad))
    (result, gradient), (same, scaled) = found
    assert torch.equal(result, same), name
    assert torch.allclose(scaled, gradient * factor), (name, scaled, gradient)
print("ok")
"""


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_are_those_of_the_adjoints_in_horovods_scale(size: int) -> None:
    """Horovod takes means where the law is a sum: its own tests want that.  The rest is the column of CONTRACTS."""
    assert jobs.run(size, LAWS) == ["ok\n"] * size
