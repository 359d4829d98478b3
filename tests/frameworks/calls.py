"""What ranks run in test_calls: each call on hocket and on Gloo, with the same input; the results must be equal.

Small whole numbers, so that the order of additions does not matter.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hocket
import hocket.torch

CHECKS: dict[str, Callable[[], None]] = {}
OPS = ("SUM", "PRODUCT", "MIN", "MAX")
GLOO_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip
DTYPES = (
    *GLOO_DTYPES, torch.int16, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
MOVED_ONLY = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.uint16, torch.uint32, torch.uint64)
gloo: Any = None


def main() -> None:
    """Run every check on this rank; print which failed."""
    global gloo
    place, rank, size = sys.argv[1], int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"])
    dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=size)
    gloo = dist.new_group(backend="gloo")
    for name, check in CHECKS.items():
        torch.manual_seed(3)
        try:
            check()
        except BaseException:
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        print(f"passed {name}", flush=True)
    dist.destroy_process_group()


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def mine(count: int, dtype: torch.dtype, *seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(dist.get_rank() * 100 + sum(seed) + count)
    return torch.randint(0, 4, (count,), generator=made).to(dtype)


def equal(got: Any, wanted: Any, what: str) -> None:
    if isinstance(got, torch.Tensor):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape, what
        assert torch.equal(got.float() if "float8" in str(got.dtype) else got,
                           wanted.float() if "float8" in str(got.dtype) else wanted), f"{what}: {got} {wanted}"
    else:
        assert len(got) == len(wanted), what
        for a, b in zip(got, wanted, strict=True):
            equal(a, b, what)


def both(run: Callable[[Any], Any], what: str) -> None:
    """The same on hocket and on Gloo."""
    equal(run(None), run(gloo), what)


def shifted(x: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that hold x: as it is, in the middle of another one, and with holes between its elements."""
    room, holes = x.new_zeros(x.numel() + 7), x.new_zeros(x.numel(), 3)
    room[3 : 3 + x.numel()] = x
    holes[:, 1] = x
    return [x.clone(), room[3 : 3 + x.numel()], holes[:, 1]]


@check
def allreduce_of_every_op_and_dtype() -> None:
    for dtype in GLOO_DTYPES:
        for op in OPS:
            for count in (0, 1, 5, 1000, 70_000):
                for kind, x in enumerate(shifted(mine(count, dtype))):
                    wanted = x.clone().contiguous()
                    dist.all_reduce(wanted, getattr(dist.ReduceOp, op), group=gloo)
                    for wait in (False, True):
                        y = x.clone() if kind == 0 else shifted(x)[kind]
                        work = dist.all_reduce(y, getattr(dist.ReduceOp, op), async_op=wait)
                        if wait:
                            work.wait()
                        equal(y.contiguous(), wanted, f"all_reduce {op} of {count} {dtype}, kind {kind}, {wait}")


@check
def allreduce_of_what_gloo_lacks() -> None:
    p = dist.get_world_size()
    for dtype in DTYPES:
        x = torch.tensor([0, 1, 0, 1]).to(dtype)
        dist.all_reduce(x)
        found = x.real if dtype.is_complex else x.float()
        assert found.tolist() == [0, 1 if dtype is torch.bool else p] * 2, (dtype, x)
    mean = torch.full((5,), float(dist.get_rank()))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.tolist() == [(p - 1) / 2] * 5
    scaled = torch.ones(5)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    assert scaled.tolist() == [p / 2] * 5
    for op, wanted in (("BAND", [5, 4, 4]), ("BOR", [5, 7, 7]), ("BXOR", [5, 3, 6])):
        bits = torch.tensor([[5, 6, 5][dist.get_rank()]])
        dist.all_reduce(bits, getattr(dist.ReduceOp, op))
        assert bits.item() == wanted[p - 1], (op, bits)
    flags = torch.tensor([dist.get_rank() == 0, True, False])
    for op, wanted in ((dist.ReduceOp.SUM, [True, True, False]), (dist.ReduceOp.PRODUCT, [p == 1, True, False])):
        y = flags.clone()
        dist.all_reduce(y, op)
        assert y.tolist() == wanted
    grad = torch.ones(3, requires_grad=True)
    dist.all_reduce(grad)
    assert grad.tolist() == [p] * 3 and grad.requires_grad


@check
def the_other_reductions() -> None:
    p = dist.get_world_size()
    for dtype in (torch.float32, torch.int64):
        for root in range(p):

            def to_root(group: Any, dtype: torch.dtype = dtype, root: int = root) -> list[float]:
                x = mine(1000, dtype)
                dist.reduce(x, root, group=group)
                return x.tolist() if dist.get_rank() == root else []

            assert to_root(None) == to_root(gloo)
        for counts in ([7] * p, list(range(1, p + 1)), [0, *range(2, p + 1)]):
            parts = [mine(n, dtype, i) for i, n in enumerate(counts)]
            out = torch.empty(counts[dist.get_rank()], dtype=dtype)
            dist.reduce_scatter(out, parts)
            whole = [part.clone() for part in parts]
            for part in whole:
                dist.all_reduce(part, group=gloo)
            equal(out, whole[dist.get_rank()], f"reduce_scatter {counts}")
        x, out = mine(6 * p, dtype).view(3 * p, 2), torch.empty(3, 2, dtype=dtype)
        dist.reduce_scatter_tensor(out, x)
        wanted = x.clone()
        dist.all_reduce(wanted, group=gloo)
        equal(out, wanted[3 * dist.get_rank() : 3 * dist.get_rank() + 3], "reduce_scatter_tensor")
        holes = torch.empty(3, 4, dtype=dtype)[:, ::2]
        dist.reduce_scatter_tensor(holes, x.t().contiguous().t())
        equal(holes.contiguous(), out, "reduce_scatter_tensor of strided tensors")


@check
def movement_of_every_dtype() -> None:
    p, rank = dist.get_world_size(), dist.get_rank()
    for dtype in (*DTYPES, *MOVED_ONLY):
        for count in (0, 1, 9, 30_000):
            seeds = [torch.Generator().manual_seed(r) for r in range(p)]
            rows = [torch.randint(0, 2, (count,), generator=seed).to(dtype) for seed in seeds]
            x = rows[rank]
            got = [torch.empty_like(x) for _ in range(p)]
            dist.all_gather(got, x)
            equal(got, rows, f"all_gather of {count} {dtype}")
            whole = torch.empty(p * count, dtype=dtype)
            dist.all_gather_into_tensor(whole, x)
            equal(list(whole.split(count)) if count else [x] * p, rows, f"all_gather_into_tensor of {count} {dtype}")
            copy = x.clone()
            dist.broadcast(copy, p - 1)
            equal(copy, rows[-1], f"broadcast of {count} {dtype}")
            at_root = [torch.empty_like(x) for _ in range(p)] if rank == 0 else None
            dist.gather(x, at_root, 0)
            if at_root is not None:
                equal(at_root, rows, f"gather of {count} {dtype}")
            out = torch.empty_like(x)
            dist.scatter(out, rows if rank == p - 1 else None, p - 1)
            equal(out, x, f"scatter of {count} {dtype}")


@check
def lists_in_one_storage_and_apart() -> None:
    """The first are written in place, without a copy; the second one by one; both also of strided tensors."""
    p, rank = dist.get_world_size(), dist.get_rank()
    x = torch.arange(6.0) + 10 * rank
    wanted = [torch.arange(6.0) + 10 * r for r in range(p)]
    outs = {
        "together": list(torch.empty(6 * p).split(6)),
        "apart": [torch.empty(6) for _ in range(p)],
        "strided": [torch.empty(6, 2)[:, 1] for _ in range(p)],
        "mixed": [torch.empty(6) if r else torch.empty(12)[::2] for r in range(p)],
    }
    for what, out in outs.items():
        work = dist.all_gather(out, x, async_op=True)
        work.wait()
        equal([each.contiguous() for each in out], wanted, f"all_gather {what}")
    uneven = [torch.empty(r + 1) for r in range(p)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    equal(uneven, [torch.full((r + 1,), float(r)) for r in range(p)], "all_gather of different sizes")


@check
def outputs_over_inputs() -> None:
    """This rank's block of the longer one needs no copy; any other overlap gets one."""
    p, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.full((p * 4,), float(rank))
    wanted = torch.arange(p).repeat_interleave(4).float()
    dist.all_gather_into_tensor(whole, whole[4 * rank : 4 * rank + 4])
    equal(whole, wanted, "all_gather_into_tensor from the own block")
    whole.fill_(rank)
    dist.all_gather_into_tensor(whole, whole[:4])
    equal(whole, wanted, "all_gather_into_tensor from the first block")
    parts = list(torch.full((p * 4,), float(rank)).split(4))
    dist.all_gather(parts, parts[-1])
    equal(torch.cat(parts), wanted, "all_gather from the last")
    for at in (rank, 0, p - 1):
        x = torch.arange(4.0 * p)
        dist.reduce_scatter_tensor(x[4 * at : 4 * at + 4], x)
        equal(x[4 * at : 4 * at + 4], p * (torch.arange(4.0) + 4 * rank), f"reduce_scatter_tensor into block {at}")
    x = torch.arange(float(p)) + 10 * rank
    dist.all_to_all_single(x, x)
    equal(x, 10 * torch.arange(float(p)) + rank, "all_to_all_single in place")
    x = torch.arange(float(p))
    dist.scatter(x[:1], list(x.split(1)) if rank == 0 else None)
    assert x[0] == rank
    x = torch.full((p,), float(rank))
    dist.gather(x[:1], list(x.split(1)) if rank == 0 else None)
    assert rank or x.tolist() == list(range(p))


@check
def all_to_all() -> None:
    p, rank = dist.get_world_size(), dist.get_rank()
    count = lambda s, d: (s * 2 + d * 3) % 5  # noqa: E731
    for dtype in (torch.float32, torch.complex64, torch.bool, torch.bfloat16, torch.float8_e5m2fnuz):
        ins = [torch.full((count(rank, d), 3), (rank + d) % 2).to(dtype) for d in range(p)]
        outs = [torch.empty(count(s, rank), 3).to(dtype) for s in range(p)]
        wanted = [torch.full((count(s, rank), 3), (rank + s) % 2).to(dtype) for s in range(p)]
        if dtype is not torch.float8_e5m2fnuz:
            dist.all_to_all(outs, ins)
            equal(outs, wanted, f"all_to_all of {dtype}")
        bytewise = dtype is torch.float8_e5m2fnuz  # torch has no cat of it
        x = torch.cat([each.view(torch.uint8) for each in ins]).view(dtype) if bytewise else torch.cat(ins)
        out = torch.empty(sum(each.shape[0] for each in outs), 3).to(dtype)
        dist.all_to_all_single(out, x, [each.shape[0] for each in outs], [each.shape[0] for each in ins])
        equal(list(out.split([each.shape[0] for each in outs])), wanted, f"all_to_all_single of {dtype}")
    some = torch.arange(2.0 * p) + 10 * rank
    splits = ([2] * p, [2] * p) if rank else (None, None)  # equal parts, said by some ranks only
    dist.all_to_all_single(out := torch.empty(2 * p), some, *splits)
    equal(out, torch.cat([torch.arange(2.0) + 2 * rank + 10 * s for s in range(p)]), "splits on some ranks")
    even, out = torch.arange(4.0 * p) + 100 * rank, torch.empty(4 * p)
    dist.all_to_all_single(out, even)
    equal(out, torch.cat([torch.arange(4.0) + 4 * rank + 100 * s for s in range(p)]), "all_to_all_single, equal parts")
    with pytest.raises(ValueError, match="splits"):
        dist.all_to_all_single(torch.empty(3), torch.empty(3), [4] + [1] * (p - 1), [4] + [1] * (p - 1))


@check
def several_at_once() -> None:
    p = dist.get_world_size()
    xs = [torch.full((n,), float(n)) for n in (1, 5, 3000)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    assert [x[0].item() for x in xs] == [p, 5 * p, 3000 * p]
    outs = [torch.empty(2 * p) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as later:
        for i, out in enumerate(outs):
            dist.all_gather_into_tensor(out, torch.full((2,), float(i)))
    later.wait()
    assert [out[-1].item() for out in outs] == [0, 1, 2]
    shares = [torch.empty(2) for _ in range(3)]
    with dist._coalescing_manager(device=torch.device("cpu")):
        for share in shares:
            dist.reduce_scatter_tensor(share, torch.ones(2 * p))
    assert [share.tolist() for share in shares] == [[p, p]] * 3
    pairs = [torch.ones(2), torch.ones(4)]
    dist.all_reduce_coalesced(pairs)
    rows = [[torch.empty(3), torch.empty(1)] for _ in range(p)]
    dist.all_gather_coalesced(rows, [torch.full((3,), float(dist.get_rank())), torch.ones(1)])
    assert [row[0][0].item() for row in rows] == list(range(p)) and pairs[1].tolist() == [p] * 4


@check
def objects() -> None:
    p, rank = dist.get_world_size(), dist.get_rank()
    mine = {"rank": rank, "much": "x" * (rank * 1000)}
    found: list[Any] = [None] * p
    dist.all_gather_object(found, mine)
    assert [each["rank"] for each in found] == list(range(p))
    several = [mine, rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(several)
    assert several[1] == 0
    got: list[Any] = [None]
    dist.scatter_object_list(got, list(range(p)) if rank == 0 else None)
    assert got == [rank]
    if p > 1 and rank == 0:
        dist.send_object_list([mine], 1)
    elif rank == 1:
        dist.recv_object_list(got, 0)
        assert got[0]["rank"] == 0


@check
def messages() -> None:
    p, rank = dist.get_world_size(), dist.get_rank()
    if p == 1:
        return
    for count in (1, 1000, 200_000):
        out = torch.empty(count, 2)[:, 0]
        ops = [dist.P2POp(dist.isend, torch.full((count,), float(rank)), (rank + 1) % p),
               dist.P2POp(dist.irecv, out, (rank - 1) % p)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert out.contiguous().eq((rank - 1) % p).all()
    if rank == 0:
        seen = []
        for _ in range(p - 1):
            x = torch.empty(5)
            seen.append(dist.recv(x))
            assert x.eq(seen[-1]).all()
        assert sorted(seen) == list(range(1, p))
    else:
        dist.send(torch.full((5,), float(rank)), 0)
    if rank == 0:
        dist.send(torch.ones(3), 1, tag=7)
        dist.send(torch.zeros(3), 1, tag=8)
    elif rank == 1:
        later, sooner = torch.empty(3), torch.empty(3)
        dist.recv(later, 0, tag=8)
        dist.recv(sooner, 0, tag=7)
        assert later.sum() == 0 and sooner.sum() == 3


@check
def groups() -> None:
    p, rank = dist.get_world_size(), dist.get_rank()
    last = dist.new_group([p - 1])
    if rank == p - 1:
        x = torch.ones(2)
        dist.all_reduce(x, group=last)
        assert x.tolist() == [1, 1] and dist.get_world_size(last) == 1
    backwards = dist.new_group(list(range(p)), timeout=timedelta(seconds=33))
    x = torch.full((4,), float(rank))
    dist.broadcast(x, 0, group=backwards)
    assert x.sum() == 0 and backwards.comm.timeout == 33
    local = dist.new_group([p - 1], use_local_synchronization=True) if rank == p - 1 else None
    if local is not None:
        dist.barrier(group=local)
        dist.destroy_process_group(local)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=44), backwards)
    backwards.set_timeout(timedelta(seconds=44))
    assert backwards.comm.timeout == 44
    assert dist.get_backend() == "hocket" and "hocket" in repr(type(backwards)).lower()
    dist.destroy_process_group(backwards)
    hocket.torch.monitored_barrier()


@check
def futures() -> None:
    """They complete on their own, whoever waits; a callback may call collectives and wait for them."""
    p = dist.get_world_size()
    x, then = torch.ones(3), []

    def again(future: Any) -> float:
        y = future.value()[0].clone()
        dist.all_reduce(y)
        z = y.clone()
        dist.all_reduce(z, async_op=True).get_future().wait()
        then.append(z)
        return float(z[0])

    assert dist.all_reduce(x, async_op=True).get_future().then(again).wait() == p**3
    works = [dist.all_reduce(torch.ones(1000) * i, async_op=True) for i in range(20)]
    assert [f.wait()[0][0].item() for f in [w.get_future() for w in works]] == [p * i for i in range(20)]
    done = dist.all_reduce(torch.ones(2), async_op=True)
    done.wait()
    assert done.is_completed() and done.is_success() and done.exception() is None
    assert done.get_future().wait()[0].tolist() == [p, p] and done.result()[0].tolist() == [p, p]


@check
def futures_that_wait_for_others() -> None:
    """In a callback, and asked for by several threads at once."""
    p = dist.get_world_size()
    first, second = (dist.all_reduce(torch.ones(n), async_op=True).get_future() for n in (3, 4))
    assert first.then(lambda done: second.wait()[0].tolist()).wait() == [p] * 4
    for _ in range(30):
        work, found = dist.all_reduce(torch.ones(2), async_op=True), []
        ask = functools.partial(lambda work, found: found.append(work.get_future()), work, found)
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [future.wait()[0].tolist() for future in found] == [[p, p]] * 2


@check
def waits_that_are_too_short() -> None:
    """They say so, and are of no consequence for the call."""
    for i in range(300):
        out = torch.zeros(4, 2)[:, 0]
        if dist.get_rank():
            time.sleep(0.0002)
        work = dist.all_reduce(out.add_(1), async_op=True)
        with contextlib.suppress(hocket.TimeoutError):
            work.wait(timedelta(microseconds=100 + i))
        assert work.wait() and work.is_success() and out.tolist() == [dist.get_world_size()] * 4


@check
def works_that_nobody_waits_for() -> None:
    """What they hold goes with the next calls, also synchronous ones."""
    x = torch.ones(1000)
    seen = weakref.ref(x)
    dist.all_reduce(x, async_op=True)
    del x
    y = torch.ones(2)
    for _ in range(3):
        dist.all_reduce(y)
    dist.barrier()
    dist.all_reduce(y)
    gc.collect()
    assert seen() is None


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
        "one in memory": lambda: dist.all_reduce(torch.zeros(1).expand(4)),
        "elements of 2": lambda: dist.group.WORLD.gather([[one, three, one][:p]], [x], _at(rank)),
        "elements of 3": lambda: dist.group.WORLD.scatter([three], [[one, three, one][:p]], _at(rank)),
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
    dist.all_reduce(wanted, group=gloo)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # each rank would print it
        dist.all_reduce(x)
    equal(x.to_dense(), wanted, "sparse")
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


if __name__ == "__main__":
    main()
