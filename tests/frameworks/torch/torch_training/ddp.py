"""DistributedDataParallel: its options, and what it is used with."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from torch_training.cases import case
from torch_training.task import (
    adam,
    alike,
    batch,
    close,
    gradients,
    learn,
    learned,
    mine,
    network,
    rank,
    ranks_gradients,
    sgd,
    size,
)


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


@case(2)
def ddp_without_a_free_core() -> None:
    """The sums of buckets begin when the pass ends, where computing threads leave no core free; else meanwhile."""

    class Slow(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor, computes: bool) -> Tensor:
            ctx.computes = computes
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            until = time.perf_counter() + (0.2 if ctx.computes else 20)
            while futures and time.perf_counter() < until and not futures[0].done():
                sum(range(1000)) if ctx.computes else time.sleep(0.001)
            seen.extend(each.done() for each in futures)
            return grad, None

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(600, 600, bias=False), nn.Linear(600, 600, bias=False)

        def forward(self, x: Tensor, computes: bool) -> Tensor:
            return self.second(Slow.apply(self.first(x), computes))  # type: ignore[no-any-return]

    def hook(_: object, bucket):  # type: ignore[no-untyped-def]  # torch looks at the annotation, which would be a text
        buffer = bucket.buffer()
        work: Any = dist.all_reduce(buffer, dist.ReduceOp.AVG, async_op=True)
        futures.append(work.get_future())
        return futures[-1].then(lambda done: done.value()[0])

    futures, seen = list[Any](), list[bool]()
    model = Layers()
    wrapped = DDP(model, bucket_cap_mb=0.001)  # type: ignore[arg-type]
    wrapped.register_comm_hook(None, hook)
    threads = torch.get_num_threads
    try:
        for computes, each, begun in ((True, 1000, False), (False, 1000, True), (False, 0, True)):
            torch.get_num_threads = lambda each=each: each  # type: ignore[assignment,misc]
            found = []
            for _ in range(4):  # buckets are made anew behind the first pass; others may keep a rank from its core
                dist.barrier()
                futures.clear()
                seen.clear()
                wrapped.zero_grad()
                wrapped(torch.full((4, 600), 1.0 + rank()), computes).sum().backward()
                found += seen[:1]
            kept = found[-1] is begun or computes and begun in found
            assert len(futures) >= 2 and kept, (computes, each, found)
            assert all(future.done() for future in futures)
            alike(parameter.grad for parameter in model.parameters())
    finally:
        torch.get_num_threads = threads
