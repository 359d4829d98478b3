"""Outer loops of `hocket.training` on modules: alone, with DDP or FSDP2 inside a site, and in checkpoints."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import hocket
from hocket.torch import Checkpointed
from hocket.torch.training import Parameters, communicator, parameters
from hocket.training import DiLoCo, LocalSGD, StreamingDiLoCo
from torch_training import cases
from torch_training.cases import case
from torch_training.task import adam, alike, batch, close, full, learn, mine, network, rank, sgd, size

ROUNDS, EVERY = 3, 2


def outer_sgd(models: list[nn.Module], phi: list[Tensor], m: list[Tensor], lr: float, momentum: float) -> None:
    """DiLoCo's formula: phi and m change, and all models become phi."""
    for i, (x, speed) in enumerate(zip(phi, m, strict=True)):
        d = x - torch.stack([list(model.parameters())[i].detach() for model in models]).mean(0)
        speed.mul_(momentum).add_(d)
        x.sub_(lr * (d + momentum * speed))
        for model in models:
            list(model.parameters())[i].data.copy_(x)


def in_one_process(shares: list[tuple[Tensor, Tensor]], kind: Any) -> list[Tensor]:
    """Sites that train on their shares for ROUNDS rounds, all here; the inner optimizers are never touched."""
    models: list[nn.Module] = [network() for _ in shares]
    optimizers = [kind(model) for model in models]
    phi = [each.detach().clone() for each in models[0].parameters()]
    m = [torch.zeros_like(each) for each in phi]
    for _ in range(ROUNDS):
        for model, optimizer, (x, y) in zip(models, optimizers, shares, strict=True):
            learn(model, optimizer, x, y, EVERY)
        outer_sgd(models, phi, m, 0.7, 0.9)
    return phi


def train(model: Any, optimizer: Any, outer: Any, x: Tensor, y: Tensor, steps: int = ROUNDS * EVERY) -> None:
    for _ in range(steps):
        learn(model, optimizer, x, y, 1)
        outer.step()


@case(2, 3)
def outer_of_modules() -> None:
    """Adam inside, DiLoCo outside; and a module that was not ready begins as rank 0's."""
    model = network()
    with torch.no_grad():
        model[0].weight += rank()
    outer = DiLoCo(communicator(), parameters(model), every=EVERY)
    train(model, adam(model), outer, *map(mine, batch()))
    alike(model.parameters())
    shares = list(zip(*(each.chunk(size()) for each in batch()), strict=True))
    close(model.parameters(), in_one_process(shares, adam))


@case(4)
def outer_and_ddp() -> None:
    """Two sites of two ranks: DDP averages gradients in each, and the loop parameters between them, on one mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "inside"))
    model = network()
    wrapped = DDP(model, process_group=mesh.get_group("inside"))
    outer = DiLoCo(communicator(mesh.get_group("site")), parameters(wrapped), every=EVERY)
    assert list(outer.flat.arrays) == [name for name, _ in model.named_parameters()]
    x, y = (each.chunk(2)[mesh.get_local_rank("site")] for each in batch())
    inside = mesh.get_local_rank("inside")
    train(wrapped, sgd(wrapped), outer, x.chunk(2)[inside], y.chunk(2)[inside])
    alike(model.parameters())
    close(model.parameters(), in_one_process(list(zip(*(each.chunk(2) for each in batch()), strict=True)), sgd))


@case(4)
def outer_and_fsdp2() -> None:
    """The same with shards: each rank averages its own with the other site's."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "inside"))
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["inside"])
    fully_shard(model, mesh=mesh["inside"])
    outer = DiLoCo(communicator(mesh.get_group("site")), parameters(model), every=EVERY)
    whole = sum(each.numel() for each in network().parameters())
    assert outer.flat.size < 0.6 * whole
    x, y = (each.chunk(2)[mesh.get_local_rank("site")] for each in batch())
    inside = mesh.get_local_rank("inside")
    train(model, sgd(model), outer, x.chunk(2)[inside], y.chunk(2)[inside])
    found = full(model.parameters())
    alike(found)
    close(found, in_one_process(list(zip(*(each.chunk(2) for each in batch()), strict=True)), sgd))


@case(2, 3)
def outer_in_checkpoints() -> None:
    """With DCP, while a round is under way and a codec owes something: the next steps have the same bits."""
    import torch.distributed.checkpoint as dcp  # not where cases are collected: a second

    def loop(model: nn.Module) -> Any:
        return StreamingDiLoCo(
            communicator(), parameters(model), every=4, fragments=2, delay=1, send="doublesqueeze:int8", momentum=0.5
        )

    model = network()
    outer, optimizer = loop(model), sgd(model)
    train(model, optimizer, outer, *map(mine, batch()), 6)
    assert outer.state_dict()["numbers"]["flight"] is not None
    place = f"{cases.place}/outer-{size()}"
    dcp.save({"outer": Checkpointed(outer)}, checkpoint_id=place)
    again = copy.deepcopy(model)
    kept = [each.detach().clone() for each in model.parameters()]
    other, momentum = loop(again), sgd(again)
    momentum.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, was in zip(again.parameters(), kept, strict=True):
        each.data.copy_(was)  # what a rank's own checkpoint does: a loop begins as rank 0
    dcp.load({"outer": Checkpointed(other)}, checkpoint_id=place)
    for each in ((model, optimizer, outer), (again, momentum, other)):
        train(*each, *map(mine, batch()), 7)
        each[2].finish()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    alike(again.parameters())


@case(2, 3)
def outer_of_kinds_of_tensors() -> None:
    """bfloat16 is averaged as floats; frozen parameters stay; what is no float, or no group of hocket's, is refused."""
    model = nn.Linear(3, 2).bfloat16()
    model.bias.requires_grad_(False)
    outer = LocalSGD(communicator(), parameters(model), every=1)
    with torch.no_grad():
        model.weight.fill_(float(rank()))
    outer.step()
    assert list(outer.flat.arrays) == ["weight"]
    assert (model.weight == (size() - 1) / 2).all() and model.weight.dtype == torch.bfloat16
    with pytest.raises(hocket.ArgumentError, match="'x' must be a tensor of floats; got torch.int64"):
        Parameters({"x": torch.arange(3)})
    with pytest.raises(hocket.ArgumentError, match="'a' is float64 and 'b' is not"):
        Parameters({"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(1)})
    store = dist.FileStore(f"{cases.place}/gloo-{size()}", size())
    other = dist.ProcessGroupGloo(store, rank(), size())
    with pytest.raises(hocket.ArgumentError, match="the group is not hocket's"):
        communicator(other)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outer.finish()
