"""Steps of training by DDP on Gloo, by DDP on hocket, and by hocket's optimizer; each of hocket's also with int8.

    python -m hocket.lab.overlap.training [--rates 1gbit]          as root (system/namespaces/hosts.py)

Two hosts of two ranks, and a cable.  VGG-like: few weights in its convolutions, many in its last layers.
Transformer-like: an embedding, which the forward pass needs first, and equal layers.  All ways train on the same data
from the same weights, each by itself; times are medians of the slowest rank.  hocket's optimizer has barrier=False,
unless it is "waiting".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import PATIENCE, arguments, heading
from hocket.system.namespaces.hosts import CABLE

MODULE = "hocket.lab.overlap.training"
MODELS = ("VGG-like", "transformer-like")
WAYS = {
    "DDP on Gloo": ("gloo", ""), "DDP on hocket": ("ddp", ""), "hocket's optimizer, waiting": ("waiting", ""),
    "hocket's optimizer": ("optimizer", ""), "DDP on hocket, int8": ("ddp", "int8"),
    "hocket's optimizer, int8": ("optimizer", "int8"),
}  # fmt: skip
WARM = 3


def model_of(name: str, scale: int) -> tuple[Any, Callable[[Any, int], Any]]:
    """The model, and what makes the loss of a step: of (model, seed)."""
    import torch

    nn, F = torch.nn, torch.nn.functional  # noqa: N806
    torch.manual_seed(0)
    if name == "VGG-like":
        wide = 64 * scale
        convolutions = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                        nn.ReLU(), nn.MaxPool2d(2)]  # fmt: skip
        dense = [nn.Linear(32 * 64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 10)]
        model: Any = nn.Sequential(*convolutions, nn.Flatten(), *dense)

        def of_images(model: Any, seed: int) -> Any:
            dice = torch.Generator().manual_seed(seed)
            x = torch.randn(16, 3, 32, 32, generator=dice)
            return F.cross_entropy(model(x), (x.mean(dim=(1, 2, 3)) * 1e3).long() % 10)

        return model, of_images
    wide, words = 16 * scale, 1000
    layers = [nn.TransformerEncoderLayer(wide, 4, 4 * wide, 0.0, batch_first=True) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(words, wide), *layers, nn.Linear(wide, words))

    def of_words(model: Any, seed: int) -> Any:
        x = torch.randint(words, (4, 32), generator=torch.Generator().manual_seed(seed))
        return F.cross_entropy(model(x).flatten(0, 1), x.flatten())

    return model, of_words


def rank(name: str, scale: str, steps: str) -> None:
    import torch
    import torch.distributed as dist

    import hocket.torch

    hocket.torch.register()
    torch.set_num_threads(1)
    dist.init_process_group("hocket")
    gloo = dist.new_group(backend="gloo")
    for way, (how, bits) in WAYS.items():
        model, loss_of = model_of(name, int(scale))
        step, finish = _step(model, loss_of, how, bits, gloo)
        times, loss = [], 0.0
        for i in range(WARM + int(steps)):
            dist.barrier()
            began = time.perf_counter()
            loss = step(1000 * i + dist.get_rank())
            times.append(time.perf_counter() - began)
        finish()
        found = torch.tensor([median(times[WARM:]), loss], dtype=torch.float64)
        largest = found.clone()
        dist.all_reduce(found)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            print(json.dumps({"way": way, "seconds": float(largest[0]), "loss": float(found[1]) / 4}), flush=True)
    dist.destroy_process_group()


def _step(
    model: Any, loss_of: Callable[[Any, int], Any], how: str, bits: str, gloo: Any
) -> tuple[Callable[[int], float], Callable[[], object]]:
    """A function that makes a step, of a seed, and returns its loss; and one that ends the last step."""
    import torch

    import hocket.torch

    optimizer: Any = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    if how in ("optimizer", "waiting"):
        waits = how == "waiting"
        optimizer = hocket.torch.DistributedOptimizer(optimizer, model, barrier=waits, codec=bits or None)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=gloo if how == "gloo" else None)
        if bits:
            hocket.torch.compress(model, bits)

    def step(seed: int) -> float:
        optimizer.zero_grad()
        loss = loss_of(model, seed)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step, getattr(optimizer, "finish", lambda: None)


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(MODULE, __doc__, argv, rates="1gbit", quick=False)
    heading(["model", "cable", "way", "a step", "x DDP on hocket", "x DDP on Gloo", "loss"])
    for rate in given.rates.split(","):
        for name in MODELS[: 1 if given.quick else None]:
            with cabled(rate, "pfifo_fast") as names:
                words = again(MODULE, name, *((2, 2) if given.quick else (16, 15)))
                rows = found_on(names, 2, words, "training", PATIENCE, GLOO_SOCKET_IFNAME=CABLE)
            found = {row["way"]: row for row in rows}
            ours, gloos = (found[way]["seconds"] for way in ("DDP on hocket", "DDP on Gloo"))
            for way, row in found.items():
                own = row["seconds"]
                cells = [f"{1e3 * own:.1f} ms", f"{ours / own:.2f}", f"{gloos / own:.2f}", f"{row['loss']:.3f}"]
                print(f"| {name} | {rate} | {way} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
