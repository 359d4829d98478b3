"""torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

import hocket
from hocket.torch.training import communicator, parameters
from hocket.training import SGD, Delayed, LocalSGD, Scheduler, Sharded
from torch_training.cases import case
from torch_training.task import (
    adam,
    alike,
    batch,
    close,
    full,
    learn,
    learned,
    mine,
    network,
    rank,
    sgd,
    size,
)


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
        everyones = fc.all_gather_tensor(x, 0, world)
        parts = fc.reduce_scatter_tensor(everyones, "sum", 0, world)
        turned = fc.all_to_all_single(everyones, None, None, world)
        return everyones, parts, turned

    for start in (0.0, 5.0):
        x = torch.arange(4.0) + 10 * rank() + start
        every = [torch.arange(4.0) + 10 * k + start for k in range(n)]
        own: Any = every[rank()]
        close(step(x), [torch.cat(every), own * n, torch.cat([own] * n)])


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


@case(2)
def compile_compressed_ddp() -> None:
    """Around `compress`, by each kind of method: a compiled module, two micro-batches a step, and a scaler that meets
    an infinity.  By top-k of all elements the parameters are those of one process; by others near them."""
    import hocket.torch

    x, y = map(mine, batch())
    methods = {"topk:1": 1e-4, "int8": 0.05, "powersgd:4": 0.3, "dgc:0.9": 0.5, "ef21:topk:0.9": 0.2}
    for method, near in methods.items():
        model = network()
        wrapped = DDP(torch.compile(model, backend=Graphs()))
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
        hocket.torch.compress(wrapped, method, lr=lambda by=scaler: 0.1 / by.get_scale())
        for step in range(5):
            optimizer.zero_grad()
            spoilt = torch.full_like(y, float("inf")) if step == 2 and rank() == 0 else y
            parts = list(zip(x.chunk(2), spoilt.chunk(2), strict=True))
            with wrapped.no_sync():
                scaler.scale(nn.functional.mse_loss(wrapped(parts[0][0]), parts[0][1]) / 2).backward()
            scaler.scale(nn.functional.mse_loss(wrapped(parts[1][0]), parts[1][1]) / 2).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2, method
        alike(model.parameters())
        start = torch.cat([each.detach().flatten() for each in network().parameters()])
        wanted, got = (
            torch.cat([each.detach().flatten() for each in some]) - start
            for some in (learned(lambda each: torch.optim.SGD(each.parameters(), 0.1), 4), model.parameters())
        )
        assert float((got - wanted).norm()) <= near * float(wanted.norm()), (method, got, wanted)


def accumulated(model: Any, x: Tensor, y: Tensor, scale: Any) -> None:
    """Two micro-batches go into the gradients."""
    for given, wanted in zip(x.chunk(2), y.chunk(2), strict=True):
        scale(nn.functional.mse_loss(model(given), wanted) / 2).backward()


@case(2)
def compile_above() -> None:
    """Around what stands above the methods: a compiled module, two micro-batches a step, and a scale that meets an
    infinity on rank 0.  A loop averages what its scaler has left; `Sharded(clip=)` refuses it on all ranks."""
    x, y = map(mine, batch())
    loops, shards = [], []
    for compiled in (False, True):
        model = network()
        run = torch.compile(model, backend=Graphs()) if compiled else model
        optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=4.0, enabled=compiled)
        loop = LocalSGD(communicator(), parameters(model), every=2)
        for step in range(6):
            spoilt = step == 2 and rank() == 0
            optimizer.zero_grad()
            accumulated(run, x, torch.full_like(y, float("inf")) if spoilt and compiled else y, scaler.scale)
            if compiled or not spoilt:
                scaler.step(optimizer)
            scaler.update()
            loop.step()
        loops.append([*model.parameters()])
        model = network()
        run, scale = torch.compile(model, backend=Graphs()) if compiled else model, 4.0 if compiled else 1.0
        sharded = Sharded(SGD(0.1), communicator(), parameters(model), clip=100.0)
        for step in range(4):
            spoilt = compiled and step == 2 and rank() == 0
            model.zero_grad()
            wanted = torch.full_like(y, float("inf")) if spoilt else y
            accumulated(run, x, wanted, lambda loss, by=scale: loss * by)
            given = {name: each.grad / scale for name, each in model.named_parameters()}
            if step != 2:
                sharded.step(given)
            elif compiled:
                with pytest.raises(hocket.ArgumentError, match="the gradient's norm is .*; nothing changed"):
                    sharded.step(given)
                scale /= 2
        shards.append([*model.parameters()])
    close(*loops)
    close(*shards)


@case(2)
def compile_overlap() -> None:
    """The same around a Scheduler, whose gradients are ready in hooks of the second backward pass: a scaler looks at
    the averages, or the Scheduler does; and around `Delayed`, which refuses them on all ranks one step later."""
    x, y = map(mine, batch())
    infinite = torch.full_like(y, float("inf")) if rank() == 0 else y
    for finite in (False, True):
        model = network()
        run, optimizer, scaler = torch.compile(model, backend=Graphs()), sgd(model), torch.amp.GradScaler("cpu", 4.0)
        scheduler, passes = Scheduler(communicator(), finite=finite), dict.fromkeys(dict(model.named_parameters()), 0)

        def made(parameter: Tensor, name: str, scheduler: Any = scheduler, passes: Any = passes) -> None:
            passes[name] += 1
            if passes[name] % 2 == 0:
                scheduler.ready(name, parameter.grad)

        for name, each in model.named_parameters():
            scheduler.declare(name, each)
            each.register_post_accumulate_grad_hook(lambda parameter, name=name, made=made: made(parameter, name))
        for step in range(5):
            optimizer.zero_grad()
            accumulated(run, x, infinite if step == 2 else y, scaler.scale)
            assert scheduler.step() == []
            wrong = []
            for name in passes:
                try:
                    scheduler.wait(name)
                except hocket.ArgumentError:
                    wrong.append(name)
            assert bool(wrong) == (finite and step == 2), wrong
            if not wrong:
                scaler.step(optimizer)
            scaler.update(scaler.get_scale() / 2 if wrong else None)
        assert scaler.get_scale() == 2
        close(model.parameters(), learned(sgd, 4))
        scheduler.close()
    ways = []
    for compiled in (False, True):
        model = network()
        run, scale = torch.compile(model, backend=Graphs()) if compiled else model, 4.0 if compiled else 1.0
        delayed = Delayed(Scheduler(communicator()), dict(model.named_parameters()), lr=0.1, momentum=0.5)
        for step in range(5):
            model.zero_grad()
            accumulated(run, x, infinite if compiled and step == 2 else y, lambda loss, by=scale: loss * by)
            given = {name: each.grad / scale for name, each in model.named_parameters()}
            if step == 3:  # the averages of step 2 are seen here
                if compiled:
                    with pytest.raises(hocket.ArgumentError, match="the average holds a NaN or an infinity"):
                        delayed.step(given)
                    scale /= 2
                delayed.finish()
            elif compiled or step != 2:
                delayed.step(given)
        delayed.finish()
        alike(model.parameters())
        ways.append([*model.parameters()])
        delayed.scheduler.close()
    close(*ways)
