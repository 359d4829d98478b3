"""Objects, messages and groups."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hocket
import hocket.torch
from calls.checks import check


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
def inside_a_group_of_hockets() -> None:
    """torch's calls are none of it: they are carried out at once."""
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    with hocket.group():
        rows, objects = [torch.zeros(2) for _ in ranks], [None for _ in ranks]
        strided = torch.full((4, 2), float(rank))
        dist.all_reduce(strided[:, 0])
        dist.all_gather(rows, torch.full((2,), float(rank)))
        dist.all_gather_object(objects, {"of": rank})
        assert strided.tolist() == [[float(sum(ranks)), float(rank)]] * 4
        assert [row.tolist() for row in rows] == [[float(r)] * 2 for r in ranks]
        assert objects == [{"of": r} for r in ranks]


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
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=44), backwards)
    backwards.set_timeout(timedelta(seconds=44))
    assert backwards.comm.timeout == 44
    assert dist.get_backend() == "hocket" and "hocket" in repr(type(backwards)).lower()
    dist.destroy_process_group(backwards)
    hocket.torch.monitored_barrier()
