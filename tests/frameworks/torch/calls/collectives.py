"""Every collective, with every op and dtype, in every shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from calls import checks
from calls.checks import DTYPES, GLOO_DTYPES, MOVED_ONLY, OPS, check, equal, mine, shifted
from hocket.torch.calls import quick


@check
def allreduce_of_every_op_and_dtype() -> None:
    for dtype in GLOO_DTYPES:
        for op in OPS:
            for count in (0, 1, 5, 1000, 70_000):
                for kind, x in enumerate(shifted(mine(count, dtype))):
                    wanted = x.clone().contiguous()
                    dist.all_reduce(wanted, getattr(dist.ReduceOp, op), group=checks.gloo)
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
def options_are_read_or_asked() -> None:
    """All_reduce reads them where they lie, if that is known, and asks them else: both find the same."""
    p, found = dist.get_world_size(), list[Any]()
    try:
        for known in (True, False):
            assert quick.find(dist.AllreduceOptions if known else object) is known
            found.append([])
            for op in 3 * ["SUM", "AVG", "PRODUCT", "MIN", "MAX"]:  # again: the short way
                for later in (False, True):
                    x = torch.full((5,), dist.get_rank() + 1.0)
                    work = dist.all_reduce(x, getattr(dist.ReduceOp, op), async_op=later)
                    assert (work is not None) is later
                    if later:
                        work.wait()
                    found[-1].append(x.tolist())
    finally:
        assert quick.find()
    assert found[0] == found[1] and found[0][0] == [p * (p + 1) / 2] * 5


@check
def the_other_reductions() -> None:
    p = dist.get_world_size()
    for dtype in (torch.float32, torch.int64):
        for root in range(p):

            def to_root(group: Any, dtype: torch.dtype = dtype, root: int = root) -> list[float]:
                x = mine(1000, dtype)
                dist.reduce(x, root, group=group)
                return x.tolist() if dist.get_rank() == root else []

            assert to_root(None) == to_root(checks.gloo)
        for counts in ([7] * p, list(range(1, p + 1)), [0, *range(2, p + 1)]):
            parts = [mine(n, dtype, i) for i, n in enumerate(counts)]
            out = torch.empty(counts[dist.get_rank()], dtype=dtype)
            dist.reduce_scatter(out, parts)
            whole = [part.clone() for part in parts]
            for part in whole:
                dist.all_reduce(part, group=checks.gloo)
            equal(out, whole[dist.get_rank()], f"reduce_scatter {counts}")
        x, out = mine(6 * p, dtype).view(3 * p, 2), torch.empty(3, 2, dtype=dtype)
        dist.reduce_scatter_tensor(out, x)
        wanted = x.clone()
        dist.all_reduce(wanted, group=checks.gloo)
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
