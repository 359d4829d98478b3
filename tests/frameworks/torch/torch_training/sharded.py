"""Parameters and optimizer states in shards: ZeRO, FSDP and FSDP2."""

from __future__ import annotations

import functools
import io
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.testing import assert_close

from torch_training import cases
from torch_training.cases import case
from torch_training.task import (
    adam,
    batch,
    close,
    full,
    gradients,
    learn,
    learned,
    mine,
    network,
    rank,
    sgd,
    size,
)


@case(2, 3)
def zero_redundancy_optimizer() -> None:
    """Each rank keeps a part of Adam's state; together it is Adam's."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, reference = network(), network()
    wrapped = DDP(model)
    kinds: Any = {"optimizer_class": torch.optim.Adam, "lr": 0.01}
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), **kinds)
    learn(wrapped, optimizer, *map(mine, batch()))
    other = adam(reference)
    learn(reference, other, *batch())
    close(model.parameters(), reference.parameters())
    assert 0 < len(optimizer.optim.state) < len(other.state)
    optimizer.consolidate_state_dict(to=0)
    if rank() == 0:
        got, wanted = optimizer.state_dict()["state"], other.state_dict()["state"]
        assert got.keys() == wanted.keys()
        for key in wanted:
            assert_close(got[key], wanted[key])


@case(2, 3)
def fsdp1() -> None:
    """FullyShardedDataParallel, all ways to shard, with the gradients' norm clipped."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    norms: list[Tensor] = []

    def clipped(model: Any, x: Tensor, y: Tensor, clip: Callable[[], Tensor]) -> None:
        optimizer = adam(model)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            norms.append(clip())
            optimizer.step()

    reference = network()
    clipped(reference, *batch(), lambda: nn.utils.clip_grad_norm_(reference.parameters(), 0.1))
    ways = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"] if size() == 2 else ["FULL_SHARD"]
    for way in ways:
        model: Any = FullyShardedDataParallel(
            network(), sharding_strategy=ShardingStrategy[way], auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=torch.device("cpu"), use_orig_params=way != "NO_SHARD",
        )  # fmt: skip
        clipped(model, *map(mine, batch()), functools.partial(model.clip_grad_norm_, 0.1))
        assert_close(norms[-3:], norms[:3])
        with FullyShardedDataParallel.summon_full_params(model):
            close(model.parameters(), reference.parameters())


@case(4)
def fsdp1_hybrid() -> None:
    """Sharded over two ranks, replicated over two."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model: Any = FullyShardedDataParallel(
        network(), device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_id=torch.device("cpu")
    )
    learn(model, adam(model), *map(mine, batch()))
    with FullyShardedDataParallel.summon_full_params(model):
        close(model.parameters(), learned())


def sharded(mesh: Any, **options: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    model: Any = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@case(2, 3)
def fsdp2() -> None:
    """fully_shard: parameters, Adam's state, and the norm of the gradients are those of one process."""
    mesh = init_device_mesh("cpu", (size(),))
    reference = network()
    other = adam(reference)
    learn(reference, other, *batch())
    for options in ({}, {"reshard_after_forward": False}):
        model = sharded(mesh, **options)
        optimizer = adam(model)
        learn(model, optimizer, *map(mine, batch()))
        close(full(model.parameters()), reference.parameters())
        for a, b in zip(model.parameters(), reference.parameters(), strict=True):
            assert a.to_local().numel() < b.numel()
            assert_close(optimizer.state[a]["exp_avg_sq"].full_tensor(), other.state[b]["exp_avg_sq"])
        got: Any = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        assert_close(got.full_tensor(), nn.utils.clip_grad_norm_(reference.parameters(), 1e9))


@case(2, 3)
def fsdp2_memory_of_the_group() -> None:
    """Buffers that all ranks of the host have mapped, by torch's own switch: the same bits as without."""
    import numpy as np

    import hocket.torch
    from hocket.torch.memory import Allocating

    mesh = init_device_mesh("cpu", (size(),))
    given = list[Any]()
    allocate = Allocating.allocate_tensor

    def watched(self: Any, *args: Any, **named: Any) -> Tensor:
        given.append(allocate(self, *args, **named))
        return given[-1]

    def trained(its_memory: bool, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(3)
        model: Any = nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 4))
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for layer in (model[2], model):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
            layer.set_allocate_memory_from_process_group_for_comm(its_memory)
        learn(model, adam(model), *map(mine, batch()))
        return full(model.parameters())

    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    Allocating.allocate_tensor = watched  # type: ignore[method-assign]
    try:
        for dtype in (torch.float32, torch.bfloat16):
            usual, shared = trained(False, dtype), trained(True, dtype)
            assert [each.tolist() for each in usual] == [each.tolist() for each in shared]
    finally:
        Allocating.allocate_tensor = allocate  # type: ignore[method-assign]
    assert {each.dtype for each in given} == {torch.float32, torch.bfloat16} and {each.dim() for each in given} == {1}
    comm: Any = dist.group.WORLD.comm  # type: ignore[union-attr]
    (told,) = [line for line in comm.explain().splitlines() if "lie in shared memory" in line]
    assert " 0 B in use" not in told and "ordinary" not in told, told

    made = hocket.torch.empty(1 << 10, 1 << 10, dtype=torch.bfloat16)
    assert made.shape == (1 << 10, 1 << 10) and made.is_contiguous() and made.data_ptr() % 64 == 0
    assert hocket.torch.empty((2, 0)).dtype == torch.float32 and hocket.torch.empty(()).shape == ()
    where = {hocket.torch.empty(1 << 20, group=dist.group.WORLD).data_ptr() for _ in range(20)}
    assert len(where) == 1, "what was dropped is used again"
    made.fill_(rank() + 1)
    dist.all_reduce(made)
    assert (made == size() * (size() + 1) // 2).all()
    view = made[5:].view(torch.int16)
    del made
    other = hocket.torch.empty(1 << 10, 1 << 10, dtype=torch.bfloat16)
    other.zero_()
    assert view.any(), "a view keeps its memory"
    for wrong in ((-1, 3), (2.5,), ("x",)):
        with pytest.raises(hocket.ArgumentError):
            hocket.torch.empty(*wrong)
    with pytest.raises(hocket.ArgumentError, match="not a dtype of torch's"):
        hocket.torch.empty(3, dtype=np.float32)  # type: ignore[arg-type]
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    assert [backend.supports_tensor_alloc(torch.device(each)) for each in ("cpu", "cuda")] == [True, False]
    with pytest.raises(hocket.ArgumentError, match="gives host memory, and cuda was asked for"):
        backend.allocate_tensor(3, dtype=torch.float32, device=torch.device("cuda"))


@case(2, 3)
def fsdp2_compressed() -> None:
    """With int8 nearly as without; what is owed goes through a checkpoint, and the next step is the same."""
    import torch.distributed.checkpoint as dcp

    import hocket.torch
    from hocket.torch import Checkpointed

    def trained(model: Any, steps: int) -> list[Tensor]:
        learn(model, sgd(model), *map(mine, batch()), steps)
        return full(model.parameters())

    mesh = init_device_mesh("cpu", (size(),))
    model = sharded(mesh)
    compressor = hocket.torch.compress(model, "int8", gather=True)
    found = trained(model, 6)
    close(found, learned(sgd, 6), rtol=0.01, atol=0.002)
    keys = sorted(compressor.state_dict()["entries"])
    assert keys == sorted(f"{name}.{kind}" for name in ("0", "2", "4") for kind in ("gradients", "parameters"))
    assert compressor.stats("2.gradients").calls == 6 and compressor.stats("2.gradients").error < 0.02
    assert compressor.stats("2.parameters").ratio > 1.4  # of one block that is not full

    place = f"{cases.place}/owed-{size()}"
    states = {"model": model.state_dict(), "owed": Checkpointed(compressor)}
    dcp.save(states, checkpoint_id=place)
    again = sharded(mesh)
    other = hocket.torch.compress(again, "int8", gather=True)
    states = {"model": again.state_dict(), "owed": Checkpointed(other)}
    dcp.load(states, checkpoint_id=place)
    assert [each.tolist() for each in trained(model, 1)] == [each.tolist() for each in trained(again, 1)]
    foreign = io.BytesIO()
    torch.save({"entries": range(3)}, foreign)  # any class of Python's: to load it is to run it
    with pytest.raises(hocket.ArgumentError, match="holds more than arrays and numbers"):
        Checkpointed(other).load_state_dict({"rank 0 of 1": foreign})
    groups = [{"params": [p], "lr": 0.1 * i} for i, p in enumerate(again.parameters(), 1)]
    with pytest.raises(hocket.ArgumentError, match="FSDP2 averages a module's parameters as one: give lr= a function"):
        model = sharded(mesh)
        hocket.torch.compress(model, "int8", lr=torch.optim.SGD(groups))
        trained(model, 1)
    with pytest.raises(hocket.ArgumentError, match="the optimizer has no groups"):
        model = sharded(mesh)
        hocket.torch.compress(model, "int8", lr=types.SimpleNamespace(param_groups=[]))
        trained(model, 1)
    model = sharded(mesh)
    compressor = hocket.torch.compress(model, "int8", lr=lambda: 0.25)
    trained(model, 1)
    assert compressor.state_dict()["entries"]["2.gradients"]["lr"] == 0.25
    with pytest.raises(hocket.ArgumentError, match="'topk:0.1' has no reduce_scatter"):
        model = sharded(mesh)
        hocket.torch.compress(model, "topk:0.1")
        trained(model, 1)


@case(4)
def fsdp2_hybrid_compressed() -> None:
    """Sharded over two ranks, replicated over two: what is between shards is encoded."""
    import hocket.torch

    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    compressor = hocket.torch.compress(model, "int8")
    assert compressor.comm.size == 2
    learn(model, sgd(model), *map(mine, batch()))
    close(full(model.parameters()), learned(sgd), rtol=0.01, atol=0.002)


@case(2)
def fsdp2_gradient_divide_factor() -> None:
    """A factor of one's own: PREMUL_SUM in the reduce-scatter."""
    model = sharded(init_device_mesh("cpu", (size(),)))
    for layer in model.modules():
        if hasattr(layer, "set_gradient_divide_factor"):
            layer.set_gradient_divide_factor(5.0)
    x, y = map(mine, batch())
    nn.functional.mse_loss(model(x), y).backward()
    wanted = [each * size() / 5 for each in gradients(network(), *batch())]
    close(full(each.grad for each in model.parameters()), wanted)


@case(2)
def fsdp2_bfloat16() -> None:
    """Mixed precision: bfloat16 on the way, float32 parameters, close to float32 and not equal to it."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, output_dtype=torch.float32)
    model = sharded(init_device_mesh("cpu", (size(),)), mp_policy=policy)
    learn(model, sgd(model), *map(mine, batch()))
    got, wanted = full(model.parameters()), learned(sgd)
    close(got, wanted, rtol=0.02, atol=0.005)
    assert got[0].dtype == torch.float32 and not torch.equal(got[0], wanted[0])


@case(4)
def fsdp2_with_tensor_parallel() -> None:
    """A two-dimensional mesh: fully_shard over one dimension, columns and rows over the other."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model: Any = network()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    dp = mesh["dp"].get_local_rank()
    x, y = (whole.chunk(2)[dp] for whole in batch())
    learn(model, torch.optim.Adam(model.parameters(), lr=0.01, foreach=False), x, y)
    close(full(model.parameters()), learned())


@case(2)
def shards_and_cuts_as_torch_makes_them() -> None:
    """lab/large/beside_torch.py, small: ours train as FSDP2, DTensor and pipelines, on hocket and on Gloo."""
    from hocket.lab.large import beside_torch

    groups = {"hocket": torch.distributed.group.WORLD, "gloo": torch.distributed.new_group(backend="gloo")}
    found = {row["what"]: row for row in beside_torch.compared(groups, 16, 1)}
    assert [*found] == [*beside_torch.ROWS]
    for what, row in found.items():
        losses = row["losses"]
        assert losses["ours"] == pytest.approx(losses["hocket"], rel=1e-4), what
        assert losses["gloo"] == pytest.approx(losses["hocket"], rel=1e-4), what
        assert all(seconds > 0 for seconds in row["seconds"].values())
