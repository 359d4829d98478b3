"""A model in shards, cut, and in stages, by hocket and by torch's FSDP2, DTensor and pipelining: on hocket and Gloo.

    python -m hocket.lab.large.beside_torch [--ranks 2] [--width 1024] [--steps 21]

All take turns in the same processes (A B C A B C ...); steps have forward pass, backward pass and Adam.  Sharded: the
parameters are gathered for each pass (stage 3), each layer an allgather of `hocket.torch.functions`, and again behind a
checkpoint; FSDP2 does the same.  Cut: a layer by columns, then one by rows; DTensor's ColwiseParallel and
RowwiseParallel.  Pipelined: stages of layers, 1F1B.  Medians of the slowest rank.  Losses are compared: all ways train
alike.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hocket.conformance.jobs.ranks import again, found_here, main_or_rank
from hocket.lab.program import arguments, heading

MODULE = "hocket.lab.large.beside_torch"
PATIENCE, LAYERS, BATCH, MICRO = 500.0, 4, 32, 8
ROWS = {"sharded": "FSDP2", "cut": "DTensor", "pipelined": "pipelining"}
Step = Callable[[], float]


def rank(width: str, steps: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding."""
    import torch
    import torch.distributed as dist

    import hocket.torch

    hocket.torch.register()
    torch.set_num_threads(1)
    size, place = int(os.environ["WORLD_SIZE"]), f"file://{os.environ['PLACE']}/store"
    dist.init_process_group("hocket", init_method=place, rank=int(os.environ["RANK"]), world_size=size)
    groups = {"hocket": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for found in compared(groups, int(width), int(steps)):
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def compared(groups: dict[str, Any], width: int, steps: int) -> Iterator[dict[str, Any]]:
    """For each model, median seconds of a step and the last loss, by way."""
    for what, ours, theirs in (
        ("sharded", _sharded, _fsdp2), ("cut", _cut, _dtensor), ("pipelined", _pipelined, _pipelining)
    ):  # fmt: skip
        ways = {"ours": ours(width, groups["hocket"])}
        ways.update({name: theirs(width, group) for name, group in groups.items()})
        yield {"what": what, **_turns(ways, steps)}


def _turns(ways: dict[str, Step], steps: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses = {}
    for turn in range(steps + 2):  # two warm up
        names = [*ways][turn % len(ways) :] + [*ways][: turn % len(ways)]
        for name in names:
            dist.barrier()
            began = time.perf_counter()
            losses[name] = ways[name]()
            if turn > 1:
                seconds[name].append(time.perf_counter() - began)
    found = {}
    for name, each in seconds.items():
        slowest = torch.tensor(each, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        found[name] = float(slowest.median())
    return {"seconds": found, "losses": losses}


def _model(width: int) -> Any:
    """Pairs of layers, of width and 2 width: the same on all ranks."""
    import torch

    torch.manual_seed(1)
    layers: list[Any] = []
    for _ in range(LAYERS // 2):
        layers += [torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.ReLU()),
                   torch.nn.Sequential(torch.nn.Linear(2 * width, width))]  # fmt: skip
    return torch.nn.Sequential(*layers)


def _batch(width: int, seed: int) -> Any:
    import torch

    return torch.randn(BATCH, width, generator=torch.Generator().manual_seed(seed))


def _step(forward: Callable[[Any], Any], parameters: Any, x: Any, average: Any = None) -> Step:
    import torch

    optimizer = torch.optim.Adam(parameters, lr=1e-4)

    def step() -> float:
        optimizer.zero_grad()
        loss = (forward(x) ** 2).mean()
        loss.backward()
        if average is not None:
            average()
        optimizer.step()
        return float(loss.detach())

    return step


def _sharded(width: int, group: Any) -> Step:
    """A layer's parameters are one vector; each rank has a part of it, and gathers the others'."""
    import torch
    import torch.distributed as dist
    from torch.utils.checkpoint import checkpoint

    from hocket.torch import functions
    from hocket.torch.training import communicator

    comm, calls = communicator(group), []
    shards: list[Any] = []
    for layer in _model(width):
        linear = layer[0]
        whole = torch.cat([linear.weight.detach().reshape(-1), linear.bias.detach()])
        padded = torch.nn.functional.pad(whole, (0, -len(whole) % comm.size))
        shards.append(torch.nn.Parameter(padded.chunk(comm.size)[comm.rank].clone()))

        def call(x: Any, shard: Any, layer: Any = layer, shape: Any = linear.weight.shape) -> Any:
            flat = functions.allgather(shard, comm)
            weight, bias = flat[: shape.numel()].view(shape), flat[shape.numel() : shape.numel() + shape[0]]
            return layer[1:](torch.nn.functional.linear(x, weight, bias))

        calls.append(call)

    def forward(x: Any) -> Any:
        for call, shard in zip(calls, shards, strict=True):
            x = checkpoint(call, x, shard, use_reentrant=False)
        return x

    def average() -> None:
        for shard in shards:
            shard.grad.div_(comm.size)

    return _step(forward, shards, _batch(width, dist.get_rank()), average)


def _fsdp2(width: int, group: Any) -> Step:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = _model(width), DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    return _step(model, model.parameters(), _batch(width, dist.get_rank()))


def _cut(width: int, group: Any) -> Step:
    import torch

    from hocket.torch.training.tensor import ColumnParallel, RowParallel

    made: list[Any] = []
    for i, layer in enumerate(_model(width)):
        kind: Any = RowParallel if i % 2 else ColumnParallel
        made += [kind(layer[0], group), *copy.deepcopy(layer[1:])]
    model = torch.nn.Sequential(*made)
    return _step(model, model.parameters(), _batch(width, 0))


def _dtensor(width: int, group: Any) -> Step:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan: Any = {f"{i}.0": RowwiseParallel() if i % 2 else ColwiseParallel() for i in range(LAYERS)}
    model = parallelize_module(_model(width), DeviceMesh.from_group(group, "cpu"), plan)
    return _step(model, model.parameters(), _batch(width, 0))


def _stage() -> tuple[int, int, slice]:
    """Rank, size, and the layers of this rank's stage."""
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    return rank, size, slice(rank * LAYERS // size, (rank + 1) * LAYERS // size)


def _pipelined(width: int, group: Any) -> Step:
    import torch

    from hocket.torch.training import communicator
    from hocket.torch.training.pipeline import Stage, loss
    from hocket.training import Pipeline

    rank, size, mine = _stage()
    module = _model(width)[mine]
    like = torch.empty(BATCH // MICRO, width * (1 + mine.start % 2)).numpy()
    pipe = Pipeline(Stage(module), communicator(group), like, micro=MICRO)
    optimizer, x = torch.optim.Adam(module.parameters(), lr=1e-4), _batch(width, 0).numpy()
    mean = loss(lambda y, _: (y**2).mean() / MICRO, [x] * MICRO)

    def step() -> float:
        optimizer.zero_grad()
        found = pipe.step(x if rank == 0 else None, mean if rank == size - 1 else None)
        optimizer.step()
        return found or 0.0

    return step


def _pipelining(width: int, group: Any) -> Step:
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size, mine = _stage()
    module = _model(width)[mine]
    stage = PipelineStage(module, rank, size, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, MICRO, lambda y, _: (y**2).mean())
    optimizer, x = torch.optim.Adam(module.parameters(), lr=1e-4), _batch(width, 0)

    def step() -> float:
        losses: list[Any] = []
        optimizer.zero_grad()
        last = {"target": x, "losses": losses} if rank == size - 1 else {}
        schedule.step(*([x] if rank == 0 else []), **last)
        optimizer.step()
        return float(torch.stack(losses).mean().detach()) if losses else 0.0

    return step


def run(ranks: int, width: int, steps: int) -> list[dict[str, Any]]:
    """Run a job; the numbers that rank 0 found.  All ranks are gone afterwards."""
    words = again(MODULE, width, steps, warns=False)
    return found_here(words, ranks, "beside_torch", PATIENCE, GLOO_SOCKET_IFNAME="lo")


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(MODULE, __doc__, argv, ranks="2,4", width=1024, steps=21)
    heading(["model", "ranks", "ours, ms", "torch on hocket, ms", "ours / that", "torch on Gloo, ms", "that / ours"])
    for ranks in map(int, options.ranks.split(",")):
        for row in run(ranks, options.width, options.steps):
            ours, hocket, gloo = (row["seconds"][name] for name in ("ours", "hocket", "gloo"))
            print(
                f"| {row['what']}, {ROWS[row['what']]} | {ranks} | {ours * 1e3:.1f} | {hocket * 1e3:.1f} "
                f"| {ours / hocket:.2f} | {gloo * 1e3:.1f} | {gloo / ours:.2f} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
