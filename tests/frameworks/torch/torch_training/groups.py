"""Pipelines, checkpoints, meshes and groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing import assert_close

from torch_training import cases
from torch_training.cases import case
from torch_training.sharded import sharded
from torch_training.task import (
    adam,
    batch,
    close,
    full,
    learn,
    learned,
    mine,
    rank,
    size,
)


def pipelined(kind: Any, stages: int) -> None:
    from torch.distributed.pipelining import PipelineStage

    def layer(index: int) -> nn.Module:
        torch.manual_seed(index)
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    layers, reference = [layer(i) for i in range(stages)], nn.Sequential(*(layer(i) for i in range(stages)))
    own = range(rank(), stages, size())
    made = [PipelineStage(layers[i], i, stages, torch.device("cpu")) for i in own]
    several = len(made) > 1
    schedule = kind(made if several else made[0], n_microbatches=4, loss_fn=nn.functional.mse_loss)
    torch.manual_seed(20)
    for _ in range(2):  # the second goes the way that the first has found
        for each in layers:
            each.zero_grad()
        x, y, losses = torch.randn(8, 8), torch.randn(8, 8), []  # type: ignore[var-annotated]
        last = stages - 1 in own
        out = schedule.step(*([x] if rank() == 0 else []), **({"target": y, "losses": losses} if last else {}))
        reference.zero_grad()
        wanted = reference(x)
        loss = nn.functional.mse_loss(wanted, y)
        loss.backward()
        if last:
            assert_close(out, wanted)
            assert_close(torch.stack(losses).mean(), loss)
        for i in own:
            close([each.grad for each in layers[i].parameters()], [each.grad for each in reference[i].parameters()])


@case(2, 3)
def pipeline_1f1b() -> None:
    """Activations and gradients of four microbatches go from rank to rank."""
    from torch.distributed.pipelining import Schedule1F1B

    pipelined(Schedule1F1B, size())


@case(3)
def pipeline_of_an_own_group_for_each_edge() -> None:
    """torch 2.15 splits them off the pipeline's group; before, its configuration does not know the word."""
    import torch.distributed.config as config
    from torch.distributed.pipelining import Schedule1F1B

    if not hasattr(config, "pipeline_per_edge_p2p"):
        return
    config.pipeline_per_edge_p2p = True
    try:
        pipelined(Schedule1F1B, size())
    finally:
        config.pipeline_per_edge_p2p = False


@case(2)
def pipeline_interleaved() -> None:
    """Two stages on each rank."""
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    pipelined(ScheduleInterleaved1F1B, 2 * size())


@case(2, 3)
def checkpoint() -> None:
    """Model and optimizer, saved from all ranks, loaded into a fresh model, which goes on as if nothing was."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    mesh = init_device_mesh("cpu", (size(),))
    model = sharded(mesh)
    optimizer = adam(model)
    learn(model, optimizer, *map(mine, batch()), steps=2)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=f"{cases.place}/saved-{size()}")

    torch.manual_seed(99)
    fresh = sharded(mesh, reshard_after_forward=False)
    with torch.no_grad():
        for each in fresh.parameters():
            each.zero_()
    other = adam(fresh)
    states = dict(zip(("model", "optimizer"), get_state_dict(fresh, other), strict=True))
    dcp.load(states, checkpoint_id=f"{cases.place}/saved-{size()}")
    set_state_dict(fresh, other, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    learn(fresh, other, *map(mine, batch()), steps=1)
    close(full(fresh.parameters()), learned())


@case(4)
def checkpoint_of_another_sharding() -> None:
    """Saved along rows of a mesh of 4, loaded along columns of a mesh of 2 x 2; also by `async_save`."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    line = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    whole = torch.arange(42.0).reshape(7, 6)
    for number, save in enumerate((dcp.save, dcp.async_save)):
        where = f"{cases.place}/turned{number}"
        done: Any = save({"x": distribute_tensor(whole + number, line, [Shard(0)])}, checkpoint_id=where)
        if save is dcp.async_save:
            done.result()
        dist.barrier()
        found = {"x": distribute_tensor(torch.zeros(7, 6), square, [Replicate(), Shard(1)])}
        dcp.load(found, checkpoint_id=where)
        assert torch.equal(found["x"].full_tensor(), whole + number)


@case(4)
def device_mesh() -> None:
    """Rows and columns of a mesh, their groups, and a flattened mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    row, column = divmod(rank(), 2)
    assert list(mesh.get_coordinate()) == [row, column]
    value = torch.tensor([2.0 ** rank()])
    for name, members in (("dp", [column, column + 2]), ("tp", [2 * row, 2 * row + 1])):
        group = mesh.get_group(name)
        assert dist.get_process_group_ranks(group) == members
        total = value.clone()
        dist.all_reduce(total, group=group)
        assert total.item() == sum(2.0**k for k in members)
        assert torch.equal(fc.all_gather_tensor(value, 0, (mesh, 0 if name == "dp" else 1)) + 0,
                           torch.tensor([2.0**k for k in members]))  # fmt: skip
    flat = mesh["dp", "tp"]._flatten("all")
    assert (fc.all_reduce(value, "sum", flat) + 0).item() == 15


@case(3)
def group_made_by_its_members() -> None:
    """new_group(use_local_synchronization=True): who is no member does not call it."""
    members = [0, 2]
    if rank() in members:
        for again in range(2):
            group = dist.new_group(members, use_local_synchronization=True, group_desc=f"corners {again}")
            value = torch.tensor([rank() + 1.0])
            dist.all_reduce(value, group=group)
            assert value.item() == 4 and group.group_desc == f"corners {again}"
            got = torch.zeros(1)
            other = members[1 - dist.get_rank(group)]
            work: Any = dist.isend(torch.tensor([rank() + 5.0]), other, group=group)
            dist.recv(got, other, group=group)
            work.wait()
            assert got.item() == other + 5
            dist.destroy_process_group(group)
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == 3


@case(2)
def groups_in_threads() -> None:
    """Three threads of a rank, each with a group of its own."""
    from concurrent.futures import ThreadPoolExecutor

    groups = [dist.new_group() for _ in range(3)]

    def sums(index: int) -> list[float]:
        found = []
        for step in range(50):
            value = torch.tensor([float(index * 1000 + step + rank())])
            dist.all_reduce(value, group=groups[index])
            found.append(value.item())
        return found

    with ThreadPoolExecutor(3) as pool:
        for index, found in enumerate(pool.map(sums, range(3))):
            assert found == [2.0 * (index * 1000 + step) + 1 for step in range(50)]


@case(2)
def profiler() -> None:
    """torch.profiler counts the calls of each collective, and they still give what they give."""
    x, own = torch.ones(2), torch.ones(2) * rank()
    everyones = [torch.empty(2) for _ in range(2)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            dist.all_reduce(x)
        dist.all_gather(everyones, own)
    counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("hocket:")}
    assert counts == {"hocket:all_reduce": 3, "hocket:all_gather": 1}
    assert x.tolist() == [8, 8] and [each[0].item() for each in everyones] == [0, 1]
