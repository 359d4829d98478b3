"""Steps of training with compressed gradients: hocket's methods beside torch's own hooks on Gloo, over a slow cable.

    python -m hocket.lab.compression.ddp [--rate 100mbit]

As root: two hosts of two ranks, as network namespaces.  The model has ResNet-18's list of parameters (62 tensors, 11.7
million floats) and computes next to nothing; its gradients are normal numbers.  All take turns in the same processes.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments
from hocket.system.namespaces.hosts import CABLE, sent

OURS = ("float32", "int8", "powersgd:4", "powersgd:4:bf16", "topk:0.01")
GLOOS = ("float32", "fp16", "powersgd:4")
"""torch's quantisation hooks index ranks by processes of a host, and fail over two."""
WARM, STEPS = 3, 3
PATIENCE = 580.0


def resnet18() -> list[tuple[int, ...]]:
    """The shapes of its parameters (He et al. 2015): 62 tensors, 11,689,512 elements."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for wide in (64, 128, 256, 512):
        for block in range(2):
            layers = [(wide, before if block == 0 else wide, 3, 3), (wide, wide, 3, 3)]
            layers += [(wide, before, 1, 1)] if block == 0 and wide != before else []
            for layer in layers:
                shapes += [layer, (wide,), (wide,)]
        before = wide
    return [*shapes, (1000, 512), (1000,)]


# --------------------------------------------------------------------------------------------- a rank


def rank() -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each way."""
    import torch
    import torch.distributed as dist

    import hocket.torch

    hocket.torch.register()
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    dist.init_process_group("hocket")
    gloo = dist.new_group(backend="gloo")
    ways = {("hocket", name): _ours(name) for name in OURS} | {("gloo", name): _gloos(name, gloo) for name in GLOOS}
    seconds: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    cable = dict.fromkeys(ways, 0)
    for turn in range(WARM + STEPS):
        for way, step in ways.items():
            dist.barrier()
            before, begin = sent(), time.perf_counter()
            step()
            dist.barrier()
            if turn >= WARM:
                seconds[way].append(time.perf_counter() - begin)
                cable[way] = sent() - before
    for way, values in seconds.items():
        if dist.get_rank() == 0:
            row = {"backend": way[0], "method": way[1], "seconds": median(values), "cable": cable[way]}
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def _ddp(group: Any = None, bucket: float = 25) -> tuple[Any, Callable[[], object]]:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in resnet18()])
            self.slopes = [torch.randn(shape) for shape in resnet18()]

        def forward(self) -> Any:
            return sum((weight * slope).sum() for weight, slope in zip(self.weights, self.slopes, strict=True))

    model = torch.nn.parallel.DistributedDataParallel(Model(), process_group=group, bucket_cap_mb=bucket)

    def step() -> None:
        model.zero_grad()
        model().backward()

    return model, step


def _ours(name: str) -> Callable[[], object]:
    import hocket.torch

    model, step = _ddp()
    if name != "float32":
        hocket.torch.compress(model, name)
    return step


def _gloos(name: str, group: Any) -> Callable[[], object]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # Over Gloo PowerSGD's hook is for one bucket: with two, ranks make its calls in different orders, and fail.
    model, step = _ddp(group, 25 if ":" not in name else 100)
    if name == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif name != "float32":
        state = powerSGD_hook.PowerSGDState(group, int(name.partition(":")[2]), start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return step


# --------------------------------------------------------------------------------------------- the table


def report(rows: Sequence[dict[str, Any]], rate: str) -> None:
    plain = next(row for row in rows if (row["backend"], row["method"]) == ("gloo", "float32"))
    best = min(row["seconds"] for row in rows if row["backend"] == "gloo")
    print(f"# steps of a model of 11.7 million floats, 2 hosts of 2 ranks, {rate}/s between them")
    print("| backend | method | MB on the cable | ms a step | x Gloo's float32 | x Gloo's best |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['backend']} | {row['method']} | {row['cable'] / 1e6:.2f} | {row['seconds'] * 1e3:.0f}"
            f" | {plain['seconds'] / row['seconds']:.2f} | {best / row['seconds']:.2f} |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.compression.ddp", __doc__, argv, rate="100mbit")
    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    with cabled(options.rate) as names:
        words = again("hocket.lab.compression.ddp", warns=False)
        report(found_on(names, 2, words, "ddp", PATIENCE), options.rate)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
