"""Poseidon's choice: a step of a classifier like VGG's by dense gradients, and with the cheaper way for each layer.

    python -m hocket.lab.large.factored [--rates 100mbit,1gbit] [--samples 32]         as root

Layers of 4096 x 4096, 4096 x 4096 and 4096 x 1000 behind a small convolution; two hosts of one rank each.  Bytes are
those that a host puts on the cable in a step, headers and all; "law": what the choice counts.  Columns "off by": the
largest difference of the gradients from the dense ones, of the largest element.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

import hocket
from hocket.conformance.jobs.ranks import main_or_rank
from hocket.lab.program import arguments, heading, on_a_cable, tell
from hocket.system.namespaces.hosts import sent
from hocket.torch import DistributedOptimizer
from hocket.training.large.factors import costs

MODULE = "hocket.lab.large.factored"
WIDE, CLASSES = 4096, 1000


def model(wide: int) -> torch.nn.Module:
    torch.manual_seed(1)
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 1, 1), nn.AdaptiveAvgPool2d(int(wide**0.5) // 2), nn.Flatten(), nn.Linear(wide, wide),
        nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, CLASSES),
    )  # fmt: skip


def rank(samples: str, steps: str, wide: str) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with hocket.init() as comm:
        x = torch.randn(int(samples), 1, 64, 64, generator=torch.Generator().manual_seed(comm.rank))
        ends = []
        for way in (None, "auto"):
            net = model(int(wide))
            made = DistributedOptimizer(torch.optim.SGD(net.parameters(), 1e-9), net, group=comm, factors=way)
            took, nbytes = [], []
            for _ in range(int(steps)):
                comm.barrier()
                before, began = sent(), time.perf_counter()
                made.zero_grad()
                net(x).square().mean().backward()
                made.synchronize()
                took.append(time.perf_counter() - began)
                comm.barrier()
                nbytes.append(sent() - before)
                grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
                made.step()
            ends.append(grads)
            found[str(way)] = [median(took[1:]), median(nbytes[1:])]
            made.close()
        off = [float((a - b).abs().max() / a.abs().max()) for a, b in zip(*ends, strict=True)]
        tell(comm, {**found, "off": max(off)})


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(MODULE, __doc__, argv, rates="100mbit,1gbit", quick=False, samples=32)
    wide = 256 if given.quick else WIDE
    layers = [costs(wide, n, given.samples, 2) for n in (wide, wide, CLASSES)]
    laws = {"None": sum(each.dense for each in layers) * 2, "auto": sum(min(each) for each in layers) * 2}
    heading(["cable", "samples", "way", "MB of a host and step", "law", "ms", "times as fast", "off by"])
    for rate in given.rates.split(","):
        found = on_a_cable(MODULE, rate, [given.samples, 3 if given.quick else 5, wide])
        for way, law in laws.items():
            seconds, nbytes = found[way]
            name = "dense" if way == "None" else 'factors="auto"'
            cells = [f"{nbytes / 1e6:.2f}", f"{law / 1e6:.2f}", f"{seconds * 1e3:.0f}"]
            cells += [f"{found['None'][0] / seconds:.2f}", f"{found['off']:.1e}"]
            print(f"| {rate} | {given.samples} | {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
