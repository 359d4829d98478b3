"""What ranks run in test_training: what users build on torch.distributed, unmodified, on the hocket backend.

Each case compares numbers with one process that does the whole work, or with a formula.  Every case runs in a default
group of its own, so that one failure does not make the next; `main` prints a line of JSON per case.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.testing import assert_close

import hocket.torch  # noqa: F401  makes the name known also where no entry point is installed

CASES: dict[str, tuple[int, Callable[[], None]]] = {}
"""By name: on how many ranks, and what they run.  The most ranks first: who is in no later case ends early."""
place = ""
"""A directory that all ranks share."""


def case(*sizes: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def keep(function: Callable[[], None]) -> Callable[[], None]:
        CASES.update({f"{function.__name__}-{size}": (size, function) for size in sizes})
        return function

    return keep


def order() -> list[str]:
    return sorted(CASES, key=lambda name: -CASES[name][0])


def main() -> None:
    """argv: the shared directory, and names of cases (none: all)."""
    global place
    place, rank = sys.argv[1], int(os.environ["HOCKET_RANK"])
    backend = os.environ.get("TRAINING_BACKEND", "hocket")  # "gloo" tells whose a failure is
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in sys.argv[2:] or order():
        size, function = CASES[name]
        if rank >= size:
            continue
        meet = f"file://{place}/{name}"
        dist.init_process_group(backend, init_method=meet, rank=rank, world_size=size, timeout=timedelta(seconds=30))
        torch.manual_seed(1)
        start, wrong = time.monotonic(), ""
        try:
            function()
        except Exception:
            wrong = traceback.format_exc()
            dist.group.WORLD.abort()  # the others need not wait for this rank
        dist.destroy_process_group()
        print(json.dumps([name, wrong, time.monotonic() - start]), flush=True)


# --- one task that everybody learns


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(parts: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all ranks."""
    made = torch.Generator().manual_seed(7)
    rows = 4 * (parts or size())
    return torch.randn(rows, 8, generator=made), torch.randn(rows, 4, generator=made)


def mine(whole: Tensor) -> Tensor:
    """This rank's share."""
    return whole.chunk(size())[rank()]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def learn(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def learned(kind: Callable[[nn.Module], torch.optim.Optimizer] = adam, steps: int = 3) -> list[Tensor]:
    """The parameters after one process has learned from the whole batch."""
    model = network()
    learn(model, kind(model), *batch(), steps)
    return [each.detach() for each in model.parameters()]


def close(got: Iterable[Tensor], wanted: Iterable[Tensor], **tolerance: float) -> None:
    assert_close([each.detach() for each in got], [each.detach() for each in wanted], **tolerance)


def full(parameters: Iterable[Any]) -> list[Tensor]:
    """DTensors as whole tensors."""
    return [each.full_tensor() for each in parameters]


def alike(tensors: Iterable[Tensor]) -> None:
    """All ranks have the same bits."""
    flat = torch.cat([each.detach().reshape(-1) for each in tensors])
    everyones: list[Any] = [None] * size()
    dist.all_gather_object(everyones, flat)
    for theirs in everyones:
        assert torch.equal(flat, theirs), "ranks differ"


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    model = copy.deepcopy(model)
    nn.functional.mse_loss(model(x), y).backward()
    return [each.grad for each in model.parameters()]  # type: ignore[misc]


def ranks_gradients(model: nn.Module) -> list[list[Tensor]]:
    """Each rank's own gradients, [rank][parameter]."""
    x, y = batch()
    return [gradients(model, *shares) for shares in zip(x.chunk(size()), y.chunk(size()), strict=True)]


# --- DDP


@case(2, 3)
def ddp() -> None:
    """Several buckets, momentum: the same parameters as one process, the same bits on all ranks."""
    model = network()
    wrapped = DDP(model, bucket_cap_mb=0.001)  # type: ignore[arg-type]
    learn(wrapped, sgd(wrapped), *map(mine, batch()))
    close(model.parameters(), learned(sgd))
    alike(model.parameters())


@case(2, 3)
def ddp_starts_from_rank_0() -> None:
    """Parameters when it is made, buffers at each forward."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("count", torch.full((5,), 10 * (rank() + 1)))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.count.clone()
            self.count += rank() + 1
            return self.layer(x)

    torch.manual_seed(rank())
    model = Counted()
    wrapped = DDP(model, gradient_as_bucket_view=True)
    torch.manual_seed(0)
    close(model.layer.parameters(), nn.Linear(3, 3).parameters(), rtol=0, atol=0)
    for wanted in (10, 11, 12):
        wrapped(torch.ones(1, 3)).sum().backward()
        assert model.seen.tolist() == [wanted] * 5


@case(2)
def ddp_static_graph() -> None:
    """A layer used twice under reentrant checkpoints, which only a static graph allows."""
    from torch.utils.checkpoint import checkpoint

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[0](x)
            for _ in range(2):
                x = checkpoint(lambda v: self.layers[2](v).tanh(), x, use_reentrant=True)
            return self.layers[4](x)

    model, reference = Twice(), Twice()
    wrapped = DDP(model, static_graph=True)
    learn(wrapped, sgd(wrapped), *map(mine, batch()))
    learn(reference, sgd(reference), *batch())
    close(model.parameters(), reference.parameters())


@case(2, 3)
def ddp_find_unused_parameters() -> None:
    """Each rank uses another branch; all get every branch's gradient, and none where nobody used one."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.branches = nn.ModuleList(nn.Linear(8, 4) for _ in range(size() + 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.branches[rank()](x)

    model = Branches()
    wanted = [
        gradients(branch, *shares)
        for branch, *shares in zip(model.branches, *(whole.chunk(size()) for whole in batch()), strict=False)
    ]
    wrapped = DDP(model, find_unused_parameters=True)
    x, y = map(mine, batch())
    nn.functional.mse_loss(wrapped(x), y).backward()
    for branch, expected in zip(model.branches, wanted, strict=False):
        close([branch.weight.grad, branch.bias.grad], [each / size() for each in expected])
    assert all(each.grad is None for each in model.branches[size()].parameters())


@case(2)
def ddp_no_sync() -> None:
    """Gradients stay a rank's own until the first backward outside."""
    model = network()
    own, average = ranks_gradients(model)[rank()], gradients(model, *batch())
    wrapped = DDP(model)
    x, y = map(mine, batch())
    with wrapped.no_sync():
        nn.functional.mse_loss(wrapped(x), y).backward()
    close([each.grad for each in model.parameters()], own)
    nn.functional.mse_loss(wrapped(x), y).backward()
    close([each.grad for each in model.parameters()], [2 * each for each in average])


@case(2, 3)
def ddp_join() -> None:
    """Rank r has 2 + r batches: who has none left adds zeros, and all end with the same parameters."""
    shares = list(zip(*(whole.chunk(size()) for whole in batch()), strict=True))
    model, reference = network(), network()
    wrapped = DDP(model)
    optimizer, other = sgd(wrapped), sgd(reference)
    with wrapped.join():
        for _ in range(2 + rank()):
            learn(wrapped, optimizer, *shares[rank()], steps=1)
    for step in range(2 + size() - 1):
        other.zero_grad()
        for share in range(size()):
            if step < 2 + share:
                x, y = shares[share]
                (nn.functional.mse_loss(reference(x), y) / size()).backward()
        other.step()
        if step == rank() + 1 and rank() + 1 < size():
            early = [each.detach().clone() for each in reference.parameters()]
    close(model.parameters(), reference.parameters())
    if rank() + 1 < size():
        moved = max(float((a - b).abs().max()) for a, b in zip(early, reference.parameters(), strict=True))
        assert moved > 1e-3, "the last batches must matter"


def hooked(hook: Any, state: Any = None) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Gradients of a DDP model under a communication hook, and each rank's own."""
    model = network()
    owns = ranks_gradients(model)
    wrapped = DDP(model)
    wrapped.register_comm_hook(state, hook)
    x, y = map(mine, batch())
    nn.functional.mse_loss(wrapped(x), y).backward()
    return [each.grad for each in model.parameters()], owns  # type: ignore[misc]


def compressed(owns: list[list[Tensor]], dtype: torch.dtype) -> list[Tensor]:
    """The average of two ranks' gradients that travel as `dtype`."""
    return [((a.to(dtype) / 2) + (b.to(dtype) / 2)).float() for a, b in zip(*owns, strict=True)]


@case(2)
def ddp_fp16_compress_hook() -> None:
    """Bit by bit the sum of the halves in float16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    got, owns = hooked(fp16_compress_hook)
    close(got, compressed(owns, torch.float16), rtol=0, atol=0)


@case(2)
def ddp_bf16_compress_hook() -> None:
    """hocket.torch's, as torch's own is refused for all but NCCL: bit by bit the sum of the halves in bfloat16."""
    from hocket.torch import bf16_compress_hook

    got, owns = hooked(bf16_compress_hook)
    close(got, compressed(owns, torch.bfloat16), rtol=0, atol=0)


@case(2, 3)
def ddp_allreduce_hook() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    got, owns = hooked(allreduce_hook)
    close(got, [sum(column) / size() for column in zip(*owns, strict=True)])


@case(2, 3)
def ddp_own_hook() -> None:
    """A hook that waits for another collective in its callback, and gives another thing than the average."""
    seen: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        seen.append(bucket.index())
        work: Any = dist.all_reduce(bucket.buffer(), async_op=True)

        def finish(future: Any) -> Any:
            factor = torch.tensor(float(rank() + 1))
            again: Any = dist.all_reduce(factor, op=dist.ReduceOp.MAX, async_op=True)
            again.get_future().wait()
            return future.value()[0] * state * factor

        return work.get_future().then(finish)

    got, owns = hooked(hook, 3.0)
    assert seen
    close(got, [sum(column) * 3 * size() for column in zip(*owns, strict=True)])


@case(2, 3)
def ddp_powersgd_hook() -> None:
    """Gradients of rank at most the number of ranks, approximated with that rank: the average, from fewer bytes."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 40), nn.Tanh(), nn.Linear(40, 48)).double()
    made = torch.Generator().manual_seed(5)
    wrapped = DDP(model)
    state = PowerSGDState(None, matrix_approximation_rank=size(), start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook)
    for _ in range(5):
        x, y = torch.randn(2, size(), 48, generator=made).double()
        wanted = gradients(model, x, y)
        model.zero_grad()
        nn.functional.mse_loss(wrapped(mine(x)), mine(y)).backward()
        close([each.grad for each in model.parameters()], wanted, rtol=1e-5, atol=1e-8)
    _, before, after = state.compression_stats()
    assert after < before / 2
    alike(each.grad for each in model.parameters())


@case(2)
def ddp_local_sgd() -> None:
    """Post-local SGD: each rank learns alone, and every second step the models are averaged."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    alone = dist.new_subgroups(1)[0]
    model = network()
    wrapped = DDP(model)
    wrapped.register_comm_hook(PostLocalSGDState(None, alone, 0), post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(period=2, warmup_steps=0))
    learn(wrapped, optimizer, *map(mine, batch()), steps=3)
    shares = list(zip(*(whole.chunk(size()) for whole in batch()), strict=True))
    models = [network() for _ in shares]
    optimizers = [sgd(other) for other in models]
    for steps in (1, 2):  # averaged after the first and after the third
        for other, own, share in zip(models, optimizers, shares, strict=True):
            learn(other, own, *share, steps=steps)
        with torch.no_grad():
            for column in zip(*(other.parameters() for other in models), strict=True):
                average = sum(column) / size()
                for each in column:
                    each.copy_(average)
    close(model.parameters(), models[0].parameters())


@case(2, 3)
def ddp_sparse_gradients() -> None:
    """nn.Embedding(sparse=True): ranks touch different rows, one of them on all ranks."""

    def made() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4))

    words = torch.tensor([[3, 2 * r + 5, 2 * r + 5, 2 * r + 6] for r in range(size())]).reshape(-1)
    wanted = batch()[1]
    model, reference = made(), made()
    wrapped = DDP(model)
    learn(wrapped, torch.optim.SGD(model.parameters(), 0.5), mine(words), mine(wanted))
    learn(reference, torch.optim.SGD(reference.parameters(), 0.5), words, wanted)
    assert model[0].weight.grad.is_sparse
    close(model.parameters(), reference.parameters())


@case(4)
def ddp_in_two_groups() -> None:
    """Halves of the ranks train two models beside each other."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half, place_in_half = rank() // 2, rank() % 2
    x, y = batch(2)
    y = y + half
    model, reference = network(), network()
    wrapped = DDP(model, process_group=halves[half])
    learn(wrapped, adam(wrapped), x.chunk(2)[place_in_half], y.chunk(2)[place_in_half])
    learn(reference, adam(reference), x, y)
    close(model.parameters(), reference.parameters())


@case(2)
def ddp_with_loader_processes() -> None:
    """The loader forks processes of a rank, which come and go without harm to the group."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(*batch())
    sampler: Any = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=1)
    model, reference = network(), network()
    wrapped = DDP(model)
    optimizer, other = adam(wrapped), adam(reference)
    for _ in range(2):
        for x, y in loader:
            learn(wrapped, optimizer, x, y, steps=1)
        for x, y in DataLoader(data, batch_size=2 * size()):
            learn(reference, other, x, y, steps=1)
    close(model.parameters(), reference.parameters())


# --- sharded parameters and optimizer states


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
def fsdp2_hybrid() -> None:
    """Sharded over two ranks, replicated over two."""
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    learn(model, adam(model), *map(mine, batch()))
    close(full(model.parameters()), learned())


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


# --- DTensor


@case(2, 3)
def dtensor() -> None:
    """Placements, also of parts that differ in size, and the product of sharded matrices."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size(),))
    a, b = torch.randn(7, 5), torch.randn(5, 9)
    rows, columns = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(a, mesh, [Shard(1)])
    assert torch.equal(rows.to_local(), a.chunk(size())[rank()])
    assert torch.equal(rows.full_tensor(), a)
    assert torch.equal(rows.redistribute(mesh, [Shard(1)]).to_local(), columns.to_local())
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), a)
    assert_close((rows @ distribute_tensor(b, mesh, [Replicate()])).full_tensor(), a @ b)
    product = columns @ distribute_tensor(b, mesh, [Shard(0)])
    assert product.placements == (Partial(),)
    assert_close(product.redistribute(mesh, [Shard(0)]).full_tensor(), a @ b)
    assert_close(rows.sum().full_tensor(), a.sum())
    assert_close(rows.mean(0).full_tensor(), a.mean(0))
    parts = DTensor.from_local(torch.full((4,), rank() + 1.0), mesh, [Partial("max")])
    assert parts.full_tensor().tolist() == [size()] * 4


@case(2)
def tensor_parallel() -> None:
    """Columns, then rows, with the sequence sharded between, and the loss over sharded classes."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    def made() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 10))

    mesh = init_device_mesh("cpu", (size(),))
    x, y = torch.randn(6, 8), torch.randint(0, 10, (6,))
    model, reference = made(), made()
    plan = {
        "0": SequenceParallel(sequence_dim=0, use_local_output=True),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Shard(0)),
        "4": ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    other = adam(reference)
    for _ in range(3):
        optimizer.zero_grad(), other.zero_grad()
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(x.chunk(size())[rank()]), y)
            loss.backward()
        wanted = nn.functional.cross_entropy(reference(x), y)
        wanted.backward()
        loss_value = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        assert_close(loss_value, wanted)
        optimizer.step(), other.step()
    close(full(model.parameters()), reference.parameters())
    assert model[1].weight.placements == (Shard(0),) and model[3].weight.placements == (Shard(1),)
    assert model[0].weight.placements == (Replicate(),)


# --- functional collectives, and gradients through collectives


@case(2, 3)
def functional_collectives() -> None:
    r, n, world = rank(), size(), dist.group.WORLD
    x = torch.arange(6.0).reshape(2, 3) + 10 * r
    every = [torch.arange(6.0).reshape(2, 3) + 10 * k for k in range(n)]
    assert torch.equal(fc.all_reduce(x, "sum", world) + 0, sum(every))  # type: ignore[arg-type]
    assert torch.equal(fc.all_reduce(x, "max", world) + 0, every[-1])
    assert torch.equal(fc.all_reduce(x, "avg", world) + 0, sum(every) / n)  # type: ignore[arg-type, operator]
    assert torch.equal(fc.all_gather_tensor(x, 0, world) + 0, torch.cat(every))
    assert torch.equal(fc.all_gather_tensor(x, 1, world) + 0, torch.cat(every, 1))
    wide = torch.cat([x] * n, 1)
    assert torch.equal(fc.reduce_scatter_tensor(wide, "sum", 1, world) + 0, sum(every))  # type: ignore[arg-type]
    assert torch.equal(fc.broadcast(x, n - 1, world) + 0, every[-1])
    sends = [1 + (r + d) % n for d in range(n)]
    recvs = [1 + (s + r) % n for s in range(n)]
    rows = torch.cat([torch.full((k, 2), 10.0 * r + d) for d, k in enumerate(sends)])
    got = fc.all_to_all_single(rows, recvs, sends, world) + 0
    assert torch.equal(got, torch.cat([torch.full((k, 2), 10.0 * s + r) for s, k in enumerate(recvs)]))
    assert torch.equal(fc.permute_tensor(x[0], [(k + 1) % n for k in range(n)], world) + 0, every[r - 1][0])
    two = fc.all_reduce_coalesced([x, x[0] * 2], "sum", world)
    close([each + 0 for each in two], [sum(every), sum(each[0] * 2 for each in every)])  # type: ignore[list-item]
    two = fc.all_gather_into_tensor_coalesced([x, x[0]], world)
    close([each + 0 for each in two], [torch.cat(every), torch.cat([each[0] for each in every])])
    two = fc.reduce_scatter_tensor_coalesced([torch.cat([x] * n), torch.cat([x[0]] * n)], "sum", [0, 0], world)
    close([each + 0 for each in two], [sum(every), sum(each[0] for each in every)])  # type: ignore[list-item]
    kept = x.clone()
    late = fc.all_reduce(x, "sum", world)
    assert isinstance(late, fc.AsyncCollectiveTensor)
    assert torch.equal(late + 0, sum(every)) and torch.equal(x, kept)  # type: ignore[arg-type]


@case(2, 3)
def functional_gradients() -> None:
    """The functional collectives that autograd goes through."""
    r, n, world = rank(), size(), dist.group.WORLD
    weights = [k + 1.0 for k in range(n)]
    x = torch.ones(2, 3, requires_grad=True)
    scale = torch.repeat_interleave(torch.tensor(weights), 2)[:, None]
    (fc.all_gather_tensor_autograd(x, 0, world) * scale * weights[r]).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 3), weights[r] * sum(weights)))
    x = torch.ones(2 * n, 3, requires_grad=True)
    (fc.reduce_scatter_tensor_autograd(x, "sum", 0, world) * weights[r]).sum().backward()
    assert torch.equal(x.grad, scale.expand(2 * n, 3))
    x = torch.ones(2 * n, 3, requires_grad=True)
    (fc.all_to_all_single_autograd(x, None, None, world) * scale * weights[r]).sum().backward()
    assert torch.equal(x.grad, weights[r] * scale.expand(2 * n, 3))


@case(2, 3)
def all_gather_into_tensor_out() -> None:
    """The operator that compiler passes emit."""
    out = torch.empty(3 * size())
    ops = torch.ops._c10d_functional
    got = ops.all_gather_into_tensor_out(torch.ones(3) * rank(), size(), dist.group.WORLD.group_name, out=out)
    got = ops.wait_tensor(got)
    assert got.data_ptr() == out.data_ptr()
    assert torch.equal(out, torch.arange(float(size())).repeat_interleave(3))


@case(2, 3)
def differentiable_collectives() -> None:
    """torch.distributed.nn.functional: values and gradients by hand."""
    import torch.distributed.nn.functional as F

    r, n, world = rank(), size(), dist.group.WORLD
    weights = [k + 1.0 for k in range(n)]
    total = sum(weights)

    def leaf(*shape: int) -> Tensor:
        return torch.full(shape, r + 2.0, requires_grad=True)

    def check(x: Tensor, wanted: float) -> None:
        assert torch.equal(x.grad, torch.full_like(x, wanted)), f"{x.grad} {wanted}"  # type: ignore[arg-type]

    x = leaf(3)
    out = F.all_reduce(x * 1, group=world)
    assert out.tolist() == [sum(k + 2.0 for k in range(n))] * 3
    (out * weights[r]).sum().backward()
    check(x, total)

    x = leaf(3)
    outs = F.all_gather(x, world)
    assert [each[0].item() for each in outs] == [k + 2.0 for k in range(n)]
    sum((each * weights[s] * weights[r]).sum() for s, each in enumerate(outs)).backward()  # type: ignore[union-attr]
    check(x, weights[r] * total)

    xs = [leaf(3) for _ in range(n)]
    out = F.reduce_scatter(torch.empty(3), xs, group=world)
    assert out.tolist() == [sum(k + 2.0 for k in range(n))] * 3
    (out * weights[r]).sum().backward()
    for s, each in enumerate(xs):
        check(each, weights[s])

    xs = [leaf(d + 1) for d in range(n)]
    outs = F.all_to_all([torch.empty(r + 1) for _ in range(n)], xs, world)
    assert [each[0].item() for each in outs] == [k + 2.0 for k in range(n)]
    sum((each * weights[s] * weights[r]).sum() for s, each in enumerate(outs)).backward()  # type: ignore[union-attr]
    for d, each in enumerate(xs):
        check(each, weights[d] * weights[r])

    x = leaf(n, 2)
    out = F.all_to_all_single(torch.empty(n, 2), x, group=world)
    assert out[:, 0].tolist() == [k + 2.0 for k in range(n)]
    (out * torch.tensor(weights)[:, None] * weights[r]).sum().backward()
    assert torch.equal(x.grad, weights[r] * torch.tensor(weights)[:, None].expand(n, 2))

    x = leaf(3)
    out = F.broadcast(x, n - 1, world)
    assert out.tolist() == [n + 1.0] * 3
    (out * weights[r]).sum().backward()
    check(x, total if r == n - 1 else 0.0)

    x = leaf(3)
    outs = F.gather(x, 0, world)
    if r == 0:
        assert [each[0].item() for each in outs] == [k + 2.0 for k in range(n)]
    sum((each * weights[s]).sum() for s, each in enumerate(outs)).backward()  # type: ignore[union-attr]
    check(x, weights[r])

    xs = [leaf(3) for _ in range(n)]
    out = F.scatter([each * (s + 1) for s, each in enumerate(xs)], 0, world)
    assert out.tolist() == [2.0 * (r + 1)] * 3
    (out * weights[r]).sum().backward()
    for s, each in enumerate(xs):
        check(each, weights[s] * (s + 1) if r == 0 else 0.0)


# --- torch.compile


class Graphs:
    """A compiler backend without C++ that counts the graphs that it was given."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


@case(2)
def compile_functional() -> None:
    """One graph of functional collectives, through Inductor (nothing else in it, so no C++ is compiled)."""
    world, n = dist.group.WORLD, size()

    @torch.compile(fullgraph=True)
    def step(x: Tensor) -> tuple[Tensor, ...]:
        total = fc.all_reduce(x, "sum", world)
        everyones = fc.all_gather_tensor(x, 0, world)
        parts = fc.reduce_scatter_tensor(everyones, "sum", 0, world)
        turned = fc.all_to_all_single(everyones, None, None, world)
        return total, everyones, parts, turned

    for start in (0.0, 5.0):
        x = torch.arange(4.0) + 10 * rank() + start
        every = [torch.arange(4.0) + 10 * k + start for k in range(n)]
        own: Any = every[rank()]
        close(step(x), [sum(every), torch.cat(every), own * n, torch.cat([own] * n)])  # type: ignore[list-item]


@case(2)
def compile_plain_calls() -> None:
    """dist.all_reduce and others inside one graph."""
    torch._dynamo.reset()
    n = size()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Tensor) -> Tensor:
        x = x * 2
        dist.all_reduce(x)
        everyones = x.new_empty(n * x.numel())
        dist.all_gather_into_tensor(everyones, x + dist.get_rank())
        part = torch.empty_like(x)
        dist.reduce_scatter_tensor(part, everyones, op=dist.ReduceOp.MAX)
        return torch.cat([x, everyones, part])

    total = torch.full((3,), 2.0 * sum(range(1, n + 1)))
    everyones = [total + k for k in range(n)]
    assert torch.equal(step(torch.full((3,), rank() + 1.0)), torch.cat([total, *everyones, everyones[rank()]]))


@case(2)
def compile_breaks() -> None:
    """Calls that torch.compile leaves out of its graphs run as they do outside."""
    graphs = Graphs()
    group, n = dist.new_group(), size()

    @torch.compile(backend=graphs)
    def step(x: Tensor) -> Tensor:
        x = x * 2
        work: Any = dist.all_reduce(x, async_op=True)
        work.wait()
        first = x + dist.get_rank(group)
        dist.broadcast(first, 0, group=group)
        everyones = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(everyones, first + dist.get_rank())
        dist.barrier()
        return torch.cat(everyones)

    first = torch.full((3,), 2.0 * sum(range(1, n + 1)))
    for _ in range(2):
        assert torch.equal(step(torch.full((3,), rank() + 1.0)), torch.cat([first + k for k in range(n)]))
    assert graphs.count > 1


class Own(nn.Module):
    """A user's module: torch.compile looks into it, as it does not into nn.Sequential."""

    def __init__(self, width: int = 16, buffers: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.norm = nn.BatchNorm1d(width) if buffers else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.norm(self.first(x)).tanh()).tanh())


@case(2, 3)
def compile_ddp() -> None:
    """A compiled DDP model: its graph is cut at the buckets, which are made anew after the first step."""
    graphs = Graphs()
    model, reference = Own(600), Own(600)
    wrapped = DDP(model, bucket_cap_mb=1)
    learn(torch.compile(wrapped, backend=graphs), sgd(wrapped), *map(mine, batch()))
    learn(reference, sgd(reference), *batch())
    assert graphs.count > 1
    close(model.parameters(), reference.parameters())


@case(2)
def compile_ddp_with_buffers() -> None:
    """Batch normalization's buffers, which rank 0 hands out before each forward."""
    graphs = Graphs()
    wrapped, same = DDP(Own(buffers=True)), DDP(Own(buffers=True))
    learn(torch.compile(wrapped, backend=graphs), sgd(wrapped), *map(mine, batch()))
    learn(same, sgd(same), *map(mine, batch()))
    assert graphs.count
    close(wrapped.parameters(), same.parameters())
    close(wrapped.module.norm.buffers(), same.module.norm.buffers())
    alike(wrapped.parameters())


@case(2, 3)
def compile_fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    graphs = Graphs()
    model, reference = Own(), Own()
    mesh = init_device_mesh("cpu", (size(),))
    for layer in (model.first, model.second, model.third):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    learn(torch.compile(model, backend=graphs), adam(model), *map(mine, batch()))
    learn(reference, adam(reference), *batch())
    assert graphs.count
    close(full(model.parameters()), reference.parameters())


# --- pipelines, checkpoints, meshes, groups


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
    dcp.save(states, checkpoint_id=f"{place}/saved-{size()}")

    torch.manual_seed(99)
    fresh = sharded(mesh, reshard_after_forward=False)
    with torch.no_grad():
        for each in fresh.parameters():
            each.zero_()
    other = adam(fresh)
    states = dict(zip(("model", "optimizer"), get_state_dict(fresh, other), strict=True))
    dcp.load(states, checkpoint_id=f"{place}/saved-{size()}")
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
        where = f"{place}/turned{number}"
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


if __name__ == "__main__":
    main()
