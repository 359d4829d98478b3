"""Large batches: one round for many times as many images, and what the learning rate must do for that.

    hocket run -n 2 -- python -m hocket.lab.outer.large_batch [--seeds 5] [--epochs 20] [--batch 2048]

Fashion-MNIST (Debian's dataset-fashion-mnist) and a network of 784-512-256-10, 535,818 parameters, in NumPy.  Linear
scaling: a rate as many times higher as the batch is larger (Goyal et al., "Accurate, large minibatch SGD", 2017), from
a low one on during the first epochs.  LARS and LAMB are `hocket.training`'s, by `Sharded`.  Controls: the old rate, and
the high one at once.  Each row is one recipe; mean and standard deviation are those of the seeds.
"""

from __future__ import annotations

import functools
import gzip
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.errors import ArgumentError
from hocket.lab.program import arguments
from hocket.training import SGD, Lamb, Lars, Sharded

Array = np.ndarray[Any, Any]
FOLDER = Path("/usr/share/datasets/fashion-mnist")
LAYERS = (784, 512, 256, 10)
SMALL, RATE, FALLS = 64, 0.05, 0.75
"""The small batch and its rate, which falls to a tenth after this part of the epochs."""


class Recipe(NamedTuple):
    batch: int
    make: Callable[[float], Any]
    """The optimizer of a rate."""
    rate: float
    warmup: float = 0.0
    """Epochs in which the rate rises to that."""


def recipes(batch: int, scale: float) -> dict[str, Recipe]:
    times = batch / SMALL

    def sgd(rate: float) -> SGD:
        return SGD(rate, momentum=0.9)

    return {
        f"batch {SMALL}": Recipe(SMALL, sgd, RATE),
        f"control: batch {batch}, the same rate": Recipe(batch, sgd, RATE),
        f"control: batch {batch}, rate x {scale * times:g} at once": Recipe(batch, sgd, RATE * scale * times),
        f"batch {batch}, rate x {scale * times:g}, 5 epochs of warm-up": Recipe(batch, sgd, RATE * scale * times, 5),
        f"batch {batch}, LARS, 5 epochs of warm-up": Recipe(batch, lambda rate: Lars(rate, trust=0.02), 6.0, 5),
        f"batch {batch}, LAMB, 5 epochs of warm-up": Recipe(batch, Lamb, 0.02, 5),
    }


@functools.cache
def pictures(kind: str, folder: Path = FOLDER) -> tuple[Array, Array]:
    """Images of 784 bytes, and what they show; `kind`: "train" or "t10k"."""
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is not there: apt install dataset-fashion-mnist")
    images, shown = (
        np.frombuffer(gzip.decompress((folder / f"{kind}-{what}-ubyte.gz").read_bytes()), np.uint8, offset=offset)
        for what, offset in (("images-idx3", 16), ("labels-idx1", 8))
    )
    return images.reshape(-1, LAYERS[0]), shown.astype(np.int64)


def data(kind: str, count: int | None = None) -> tuple[Array, Array]:
    """Images of 784 numbers around 0, and what they show."""
    images, shown = pictures(kind)
    return (images[:count].astype(np.float32) / 255 - 0.286) / 0.353, shown[:count]


def weights(dice: np.random.Generator, sides: Sequence[int] = LAYERS) -> dict[str, Array]:
    """A matrix and a bias for each layer."""
    w: dict[str, Array] = {}
    for i, (a, b) in enumerate(zip(sides[:-1], sides[1:], strict=True)):
        w |= {f"w{i}": dice.normal(0, math.sqrt(2 / a), (a, b)).astype(np.float32), f"b{i}": np.zeros(b, np.float32)}
    return w


def forward(w: dict[str, Array], x: Array) -> list[Array]:
    """The input of each layer, and the logarithms of the probabilities."""
    layers = [x]
    for i in range(len(w) // 2):
        x = layers[-1] @ w[f"w{i}"] + w[f"b{i}"]
        layers.append(np.maximum(x, 0))
    x = x - x.max(1, keepdims=True)
    layers[-1] = x - np.log(np.exp(x).sum(1, keepdims=True))
    return layers


def gradients(w: dict[str, Array], x: Array, shown: Array) -> dict[str, Array]:
    layers, found = forward(w, x), {}
    error = np.exp(layers[-1])
    error[np.arange(len(x)), shown] -= 1
    error /= len(x)
    for i in reversed(range(len(w) // 2)):
        found[f"w{i}"], found[f"b{i}"] = layers[i].T @ error, error.sum(0)
        if i:
            error = (error @ w[f"w{i}"].T) * (layers[i] > 0)
    return found


def judged(w: dict[str, Array], x: Array, shown: Array, tests: Array, answers: Array) -> tuple[float, float]:
    """Accuracy in percent on other images, and the loss on these."""
    right = forward(w, tests)[-1].argmax(1) == answers
    return 100 * float(right.mean()), float(-forward(w, x)[-1][np.arange(len(x)), shown].mean())


def trained(comm: Any, recipe: Recipe, seed: int, epochs: int, count: int | None) -> tuple[float, float, int]:
    """Accuracy in percent, loss in training, rounds."""
    dice, (x, shown), (tests, answers) = np.random.default_rng(seed), data("train", count), data("t10k")
    w = weights(dice)
    sharded, each = Sharded(recipe.make(recipe.rate), comm, w), recipe.batch // comm.size
    steps = len(x) // recipe.batch
    with np.errstate(all="ignore"):  # a control may fail
        for epoch in range(epochs):
            order = dice.permutation(len(x))
            for step in range(steps):
                risen = min(1.0, (epoch + (step + 1) / steps) / recipe.warmup) if recipe.warmup else 1.0
                sharded.optimizer.lr = recipe.rate * risen * (1 if epoch < FALLS * epochs else 0.1)
                mine = order[step * recipe.batch + comm.rank * each :][:each]
                sharded.step(gradients(w, x[mine], shown[mine]))
        return *judged(w, x[:10_000], shown[:10_000], tests, answers), epochs * steps


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(
        "hocket.lab.outer.large_batch", __doc__, argv, seeds=5, epochs=20, batch=2048, scale=0.25, images=60000,
        rows="0,1,2,3,4,5",
    )  # fmt: skip
    with hocket.init() as comm:
        if comm.rank == 0:
            print(f"# {options.seeds} seeds, {comm.size} ranks, {options.epochs} epochs")
            print("| way | accuracy, % | loss in training | rounds |\n|---|---|---|---|")
        chosen = [[*recipes(options.batch, options.scale).items()][int(row)] for row in options.rows.split(",")]
        for name, recipe in chosen:
            found = [trained(comm, recipe, seed, options.epochs, options.images) for seed in range(options.seeds)]
            accuracy, loss = (np.array([each[i] for each in found]) for i in range(2))
            if comm.rank == 0:
                print(f"| {name} | {accuracy.mean():.2f} ± {accuracy.std():.2f} | {loss.mean():.4f} | {found[0][2]} |",
                      flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
