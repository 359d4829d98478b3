"""hocket beside Gloo under torch.distributed: single calls, and steps of training.

    python -m hocket.lab.frameworks.torch_backend [--ranks 1,2,4] [--page docs/performance.md]

Both backends are groups of the same processes, and take turns (A B A B ...).  `comm` of a training step is how much
longer it takes than the same step without communication (DDP with a hook that does nothing, FSDP2 on a group of one
rank), with whatever the framework overlaps: the median of the differences within a turn.  Beside it are the sums of
DDP's buckets alone, one after the other: no less is possible where no core is free meanwhile.  "views": with
gradient_as_bucket_view, on both, and on the step without communication.  "group's memory": FSDP2's buffers are the
group's (set_allocate_memory_from_process_group_for_comm), beside Gloo, which has none.  The model is ResNet-50's list
of parameters (161 tensors, 25.6 million floats) in a module that computes next to nothing with them.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from hocket.bench.harness import environment
from hocket.bench.harness.page import into
from hocket.bench.harness.table import micro
from hocket.conformance.jobs.ranks import again, found_here, main_or_rank
from hocket.errors import ArgumentError
from hocket.lab.program import arguments

BEGIN = "<!-- hocket.lab.frameworks.torch_backend -->"
CALLS = ((16 * 4, 2000, 40), (1 << 20, 50, 8), (64 << 20, 2, 2))
"""Bytes, calls in a block with hocket, and with Gloo."""
BLOCKS, STEPS = 7, 21
PATIENCE = 500.0
TARGETS = {
    ("all_reduce, 64 B", 1): "<= 2.3 us", ("all_reduce, 64 B", 2): "<= 4 us, 20 x", ("all_reduce, 1 MiB", 2): "4 x",
    ("all_reduce, 64 MiB", 2): "2.5 x", ("DDP step, comm", 2): "3.3 x", ("DDP step, comm", 4): "4 x",
    ("DDP step, views, comm", 2): "4 x", ("FSDP2 step, comm", 2): "4 x", ("FSDP2 step, comm", 4): "4 x",
    ("FSDP2 step, group's memory, comm", 2): "0.7 of that without",
}  # fmt: skip
HEADER = "| what | ranks | hocket us | gloo us | x faster | wanted |\n|---|---|---|---|---|---|"


def run(ranks: int) -> list[dict[str, Any]]:
    """Run a job; the numbers that rank 0 found.  All ranks are gone afterwards."""
    words = again("hocket.lab.frameworks.torch_backend", warns=False)
    return found_here(words, ranks, "torch_backend", PATIENCE, GLOO_SOCKET_IFNAME="lo")


# --------------------------------------------------------------------------------------------- a rank


def rank() -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding."""
    import torch
    import torch.distributed as dist

    import hocket.torch

    hocket.torch.register()
    torch.set_num_threads(1)
    size = int(os.environ["WORLD_SIZE"])
    place = f"file://{os.environ['PLACE']}/store"
    dist.init_process_group("hocket", init_method=place, rank=int(os.environ["RANK"]), world_size=size)
    groups = {"hocket": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for what, seconds in [*_calls(groups), *(_steps(groups) if size > 1 else [])]:
        if dist.get_rank() == 0:
            print(json.dumps({"what": what, "ranks": size, **seconds}), flush=True)
    dist.destroy_process_group()


def _slowest(values: Sequence[float]) -> Any:
    """The slowest rank's time, for each."""
    import torch
    import torch.distributed as dist

    found = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found


def _calls(groups: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    import torch
    import torch.distributed as dist

    for nbytes, ours, theirs in CALLS:
        x = torch.zeros(nbytes // 4)
        seconds: dict[str, list[float]] = {name: [] for name in groups}
        for block in range(BLOCKS + 1):  # the first warms up
            for name, group in groups.items():
                count = ours if name == "hocket" else theirs
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(count):
                    dist.all_reduce(x, group=group)
                if block:
                    seconds[name].append((time.perf_counter() - begin) / count)
        unit = f"{nbytes >> 20} MiB" if nbytes >> 20 else f"{nbytes} B"
        yield f"all_reduce, {unit}", _medians(seconds)


def _medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    return {name: float(_slowest(values).median()) for name, values in seconds.items()}


def resnet50() -> list[tuple[int, ...]]:
    """The shapes of its parameters (He et al. 2015): 161 tensors, 25,557,032 elements."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    wide = 64
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            layers = [(inner, wide, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)]
            layers += [(4 * inner, wide, 1, 1)] if block == 0 else []
            for layer in layers:
                shapes += [layer, (layer[0],), (layer[0],)]
            wide = 4 * inner
    return [*shapes, (1000, 2048), (1000,)]


def _model() -> Any:
    import torch

    class ParameterGroup(torch.nn.Module):
        def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])

        def forward(self, x: Any) -> Any:
            return x + sum(weight.view(-1)[:1].sum() + weight.sum() * 0 for weight in self.weights)

    shapes = resnet50()
    return torch.nn.Sequential(*[ParameterGroup(shapes[i : i + 12]) for i in range(0, len(shapes), 12)])


def _steps(groups: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for what, options in {"DDP step": {}, "DDP step, views": {"gradient_as_bucket_view": True}}.items():
        ddp = {name: _ddp(group, **options) for name, group in groups.items()}
        yield from _compared(what, ddp, _ddp_alone(groups["hocket"], **options))
        del ddp
    yield "DDP step, its sums alone", _medians(_turns(_sums(groups)))
    sharded = {name: _fsdp(group) for name, group in groups.items()}
    sharded["group's memory"] = _fsdp(groups["hocket"], True)
    yield from _compared("FSDP2 step", sharded, _fsdp_alone())


def _compared(
    what: str, steps: dict[str, Callable[[], object]], alone: Callable[[], object]
) -> Iterator[tuple[str, dict[str, float]]]:
    seconds = {name: _slowest(values) for name, values in _turns({**steps, "alone": alone}).items()}
    base, gloo = seconds.pop("alone"), seconds.pop("gloo")
    for name, ours in seconds.items():
        title, both = what if name == "hocket" else f"{what}, {name}", {"hocket": ours, "gloo": gloo}
        yield title, {name: float(each.median()) for name, each in both.items()}
        yield f"{title}, comm", {name: max(0.0, float((each - base).median())) for name, each in both.items()}


def _turns(steps: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Each step's seconds; each turn begins with another one, as what comes before a step may slow it down."""
    import torch.distributed as dist

    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(STEPS + 2):  # two warm up
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier()
            begin = time.perf_counter()
            steps[name]()
            if turn > 1:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def _backward(model: Any) -> None:
    import torch

    model(torch.ones(1)).sum().backward()


def _ddp(group: Any, **options: Any) -> Callable[[], object]:
    import torch

    return partial(_backward, torch.nn.parallel.DistributedDataParallel(_model(), process_group=group, **options))


def _ddp_alone(group: Any, **options: Any) -> Callable[[], object]:
    import torch

    def done(value: Any) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(value)
        return future

    model = torch.nn.parallel.DistributedDataParallel(_model(), process_group=group, **options)
    model.register_comm_hook(None, lambda state, bucket: done(bucket.buffer()))
    return partial(_backward, model)


def _sums(groups: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Sums of one tensor of each bucket that DDP makes of the model by default: one of 1 MiB, then of 25."""
    import torch
    import torch.distributed as dist

    left = sum(math.prod(shape) for shape in resnet50()) - (1 << 18)
    buckets = [torch.zeros(1 << 18)]
    while left > 0:
        buckets.append(torch.zeros(min(left, 25 << 18)))
        left -= 25 << 18

    def sums(group: Any) -> None:
        for bucket in buckets:
            dist.all_reduce(bucket, group=group)

    return {name: partial(sums, group) for name, group in groups.items()}


def _fsdp(group: Any, its_memory: bool = False) -> Callable[[], object]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = DeviceMesh.from_group(group, "cpu"), _model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for each in [model, *model] if its_memory else []:
        each.set_allocate_memory_from_process_group_for_comm(True)
    return partial(_backward, model)


def _fsdp_alone() -> Callable[[], object]:
    """A group for each rank alone: the same work without anybody to talk to."""
    import torch.distributed as dist

    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return _fsdp(groups[dist.get_rank()])


# --------------------------------------------------------------------------------------------- the table


def line(row: dict[str, Any]) -> str:
    what, ranks, ours, theirs = row["what"], row["ranks"], row["hocket"], row["gloo"]
    faster = f"{theirs / ours:.1f}" if ours > 0 else ""
    wanted = TARGETS.get((what, ranks), "")
    return f"| {what} | {ranks} | {micro(ours)} | {micro(theirs)} | {faster} | {wanted} |"


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.frameworks.torch_backend", __doc__, argv, ranks="1,2,4", page=None)
    if not all(n.isdecimal() and int(n) for n in options.ranks.split(",")):
        raise ArgumentError(f"--ranks {options.ranks}: expected numbers of ranks with commas between")
    before = environment.describe()
    place = f"{before['processor']}, {before['usable_cores']} usable cores, load {before['load'][0]:.2f} at the start"
    print(f"{place}\n\n{HEADER}")
    lines = []
    for ranks in map(int, options.ranks.split(",")):
        for row in run(ranks):
            lines.append(line(row))
            print(lines[-1], flush=True)
    if options.page:
        import torch

        about = f"{place}, torch {torch.__version__}, {time.strftime('%d %B %Y')}"
        into(options.page, "\n".join([about, "", HEADER, *lines]), BEGIN)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
