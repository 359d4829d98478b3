"""torch's hooks and NaN checks see what they see of Gloo; groups are split, and answer what torch asks, as Gloo's."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from calls import checks
from calls.checks import check
from hocket.torch.errors import ArgumentError
from hocket.torch.group.backend import available

HOOKS = hasattr(c10d, "PreHookArgs")
"""torch 2.14 has them."""
SINCE_2_15 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
N = 6


def calls(group: Any, give: Callable[[], torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Every call, by name, of a tensor of N that `give` makes."""
    rank, size, last = dist.get_rank(), dist.get_world_size(), dist.get_world_size() - 1

    def each() -> list[torch.Tensor]:
        return [torch.empty(N) for _ in range(size)]

    def coalesced(call: Any, *shape: int) -> None:
        with dist._coalescing_manager(group):
            for _ in range(2):
                call(*(torch.empty(n) for n in shape), give(), group=group)

    def sent() -> None:
        near, far = (rank + 1) % size, (rank - 1) % size
        got, ops = torch.empty(N), []
        ops = [dist.P2POp(dist.isend, give(), near, group), dist.P2POp(dist.irecv, got, far, group)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        work = dist.isend(give(), near, group)
        dist.recv(got, None, group)
        work.wait()

    long, short = torch.empty(N * size), torch.empty(N)
    found: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(give(), group=group),
        "all_reduce later": lambda: dist.all_reduce(give(), group=group, async_op=True).wait(),
        "broadcast": lambda: dist.broadcast(give(), last, group),
        "reduce": lambda: dist.reduce(give(), last, group=group),
        "all_gather": lambda: dist.all_gather(each(), give(), group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(long, give(), group),
        "reduce_scatter": lambda: dist.reduce_scatter(short, [give() for _ in range(size)], group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.empty(N // size), give(), group=group),
        "all_to_all": lambda: dist.all_to_all(each(), [give() for _ in range(size)], group),
        "all_to_all_single": lambda: dist.all_to_all_single(short, give(), group=group),
        "gather": lambda: dist.gather(give(), each() if rank == last else None, last, group),
        "scatter": lambda: dist.scatter(short, [give() for _ in range(size)] if rank == last else None, last, group),
        "coalesced all_reduce": lambda: coalesced(dist.all_reduce),
        "coalesced all_gather": lambda: coalesced(dist.all_gather_into_tensor, N * size),
        "coalesced reduce_scatter": lambda: coalesced(dist.reduce_scatter_tensor, N // size),
        "barrier": lambda: dist.barrier(group),
    }
    return {**found, "sent": sent} if size > 1 else found


@check
def hooks() -> None:
    """In the order of their ids, before and behind every call, and never once they have gone."""
    if not HOOKS:
        try:
            dist.group.WORLD.register_pre_hook(0, print)
        except ArgumentError as error:
            assert "torch 2.14" in str(error)
            return
        raise AssertionError
    seen: dict[Any, list[Any]] = {}
    for group in (checks.gloo, dist.new_group()):
        plain, told = type(group), seen.setdefault(group.name(), [])

        def before(args: Any, told: list[Any] = told) -> None:
            shapes = [[tuple(x.shape) for x in xs] for xs in (args.input_tensors, args.output_tensors)]
            told.append((args.name, args.async_op, *shapes, args.root, args.op_id))

        def behind(args: Any, told: list[Any] = told) -> None:
            told.append((args.name, args.async_op, isinstance(args.work, dist.Work), args.op_id))

        def refuse(args: Any) -> None:
            raise LookupError(args.name)

        others = (9, 5) if SINCE_2_15 else ()  # torch 2.14 calls them in any order
        for number in others:
            group.register_pre_hook(number, lambda args, number=number, told=told: told.append(number))
        group.register_pre_hook(7, before)
        group.register_post_hook(7, behind)
        assert group.size() == dist.get_world_size()
        for name, call in calls(group, lambda: torch.ones(N)).items():
            told.append(name)
            call()
        x = torch.ones(N)
        for kind in ("pre", "post"):
            getattr(group, f"register_{kind}_hook")(1, refuse)
            try:
                dist.all_reduce(x, group=group)
            except LookupError:
                told.append(x.tolist() if kind == "pre" else "raised")
            getattr(group, f"unregister_{kind}_hook")(1)
        for number in (*others, 7, 7):
            group.unregister_pre_hook(number)
        group.unregister_post_hook(7)
        dist.all_reduce(x, group=group)
        assert type(group) is plain, "a group without hooks pays nothing"
    for a, b in zip(*seen.values(), strict=True):
        assert a == b, f"Gloo's hooks saw {a}, hocket's {b}"


@check
def nans() -> None:
    """TORCH_DIST_NAN_CHECK=1 refuses NaNs that a rank gives, in torch's words, and none that are written over."""
    if not HOOKS:
        return
    os.environ["TORCH_DIST_NAN_CHECK"] = "1"
    groups: list[Any] = [dist.new_group(backend="gloo"), dist.new_group()]
    if SINCE_2_15:
        groups.append(dist.split_group(split_ranks=[list(range(dist.get_world_size()))]))
    del os.environ["TORCH_DIST_NAN_CHECK"]
    told: list[dict[str, str]] = []
    floats = [dtype for dtype in checks.DTYPES if dtype.is_floating_point or dtype.is_complex]
    for group in groups:
        told.append({})
        clean, dirty = torch.ones(N), torch.tensor([1.0] * (N - 1) + [float("nan")])
        for name, call in calls(group, dirty.clone).items():
            if name in ("barrier", "broadcast", "scatter"):  # not all ranks give a tensor: some would wait
                continue
            try:
                call()
            except RuntimeError as error:
                told[-1][name] = str(error).partition(".")[0]
        for call in calls(group, clean.clone).values():
            call()
        dist.broadcast(clean if dist.get_rank() == 0 else dirty.clone(), 0, group)
        dist.all_reduce(torch.ones(N, dtype=torch.int32), group=group)
        for dtype in floats:
            try:
                dist.all_gather_into_tensor(torch.empty(N * dist.get_world_size()).to(dtype), dirty.to(dtype), group)
            except RuntimeError as error:
                told[-1][str(dtype)] = str(error).partition(".")[0]
    wanted = {str(dtype) for dtype in floats} | calls(None, clean.clone).keys() - {"barrier", "broadcast", "scatter"}
    for each in told:
        assert each == dict.fromkeys(wanted, "NaN found in input tensor"), each


@check
def split() -> None:
    """Ranks in the order that is asked for, again and again, of a split, and after a group has failed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = list(reversed(range(size)))
    whole: Any = dist.group.WORLD
    if SINCE_2_15:
        halves = dist.split_group(split_ranks=[ranks[: size // 2 + 1], ranks[size // 2 + 1 :] or [0]])
        assert dist.get_process_group_ranks(halves) == (ranks[: size // 2 + 1] if rank >= size - size // 2 - 1 else [0])
        one = dist.split_group(split_ranks=[[0]], timeout=timedelta(seconds=7), group_desc="one")
        assert (one is dist.GroupMember.NON_GROUP_MEMBER) == (rank > 0)
        if rank == 0:
            options = one._get_backend(torch.device("cpu")).options
            assert (options._timeout, one.group_desc, one.bound_device_id) == (timedelta(seconds=7), "one", None)
    for turn in range(2):
        group = whole.split_group(ranks)
        again = group.split_group(ranks, group_name=f"again {turn}")
        for each, place in ((group, ranks.index(rank)), (again, rank)):
            out = torch.empty(size, dtype=torch.int64)
            each.all_gather_single(out, torch.tensor([rank])).wait()
            assert out.tolist() == (ranks if each is group else ranks[::-1])
            assert (each.rank(), each.size()) == (place, size)
        assert again.group_name == f"again {turn}" and ":split:" in group.group_desc
        assert (whole.split_group([0]) is None) == (rank > 0)
        try:
            again.allreduce([torch.ones(2 + rank)]).wait()
        except RuntimeError:
            assert size > 1
        again.shutdown()
        group.shutdown()
    for wrong in ([size], [-1, 0]):
        try:
            whole.split_group(wrong)
        except ArgumentError as error:
            assert "are no ranks of a group" in str(error)
        else:
            raise AssertionError(wrong)


@check
def asked() -> None:
    """A group and its backend have an answer where Gloo's have one: no, to all that is only for others."""
    yes = {"supports_splitting", *(["supports_shrinking"] if available() else [])}
    group: Any = dist.group.WORLD
    gloo = checks.gloo
    backend, others = (each._get_backend(torch.device("cpu")) for each in (group, gloo))
    for mine, of_gloo in ((group, gloo), (backend, others)):
        for name in dir(of_gloo):
            if "supports_" in name and not callable(getattr(of_gloo, name)):
                assert getattr(mine, name) is (name in yes), name
    for name in ("register_abort_hook", "get_reconfigure_handle", "new_window", "_wait_for_pending_works"):
        try:
            getattr(group, name)()
        except RuntimeError as error:
            assert f"hocket does not support {name}" in str(error)
    assert backend is group._get_backend(torch.device("cuda")) is group.get_backend(torch.device("cpu"))
    assert backend.options._timeout == others.options._timeout
    backend.eager_connect_single_device(None)
    backend.perform_nocolor_split(None)
    for name in ("_supports_reconfigure", "_supports_window"):
        assert not hasattr(dist, name) or getattr(dist, name)() is False
