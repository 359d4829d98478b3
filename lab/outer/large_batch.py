"""Large batches: one round for eight times as many images, and what the learning rate must do for that.

    hocket run -n 4 -- python -m hocket.lab.outer.large_batch [--models 25] [--epochs 40]

The digits and models of hocket.lab.outer.digits.  Gradients of eight batches are added up on each rank before
they are averaged (gradient accumulation), so there is an eighth of the rounds.  Linear scaling: a rate eight times as
high (Goyal et al., "Accurate, Large Minibatch SGD", 2017), from a low one on during the first epochs.  LARS: each
matrix's rate is in proportion to norm(w) / norm(gradient) (You et al., "Large Batch Training of Convolutional
Networks", 2017).  Controls: the old rate; the high one at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.lab.outer.digits import (
    EACH,
    FOLDS,
    LAYERS,
    MOMENTUM,
    SEEDS,
    Array,
    Data,
    data,
    gradients,
    judged,
    rate_of,
    weights,
)

EPOCHS, TIMES = 40, 8
TRUST, DECAY = 0.02, 1e-4
"""LARS: its coefficient, and what of the weights is added to the gradient."""


class Recipe(NamedTuple):
    times: int
    """Batches of EACH images a rank and round."""
    scale: float
    """The scale of the learning rate."""
    warmup: int = 0
    """Epochs in which it rises to that."""
    lars: bool = False


ROWS = {
    "batch 64": Recipe(1, 1),
    "batch 512, rate x 8, 5 epochs of warm-up": Recipe(TIMES, TIMES, 5),
    "batch 512, LARS, 5 epochs of warm-up": Recipe(TIMES, TIMES, 5, lars=True),
    "control: batch 512, the same rate": Recipe(TIMES, 1),
    "control: batch 512, rate x 8 at once": Recipe(TIMES, TIMES),
}


def trained(comm: Any, row: Recipe, known: Data, epochs: int) -> tuple[Array, float, int]:
    """(accuracies in percent, loss in training, rounds)."""
    models, count = known.digits.shape
    parameters, which, rounds = weights(models), np.arange(models)[:, None], 0
    speeds = [np.zeros_like(one) for one in parameters]
    dice = [np.random.default_rng([11, model]) for model in range(models)]
    size = EACH * row.times
    steps = max(1, count // comm.size // size)
    for epoch in range(epochs):
        orders = np.stack([d.permutation(count)[comm.rank :: comm.size] for d in dice])
        for step in range(steps):
            risen = min(1.0, (epoch + step / steps + 0.1) / row.warmup) if row.warmup else 1.0
            rate = rate_of(epoch, epochs) * (1 + (row.scale - 1) * risen)
            whole = [np.zeros_like(one) for one in parameters]
            for batch in range(row.times):
                at = step * size + batch * EACH
                taken = orders[:, at : at + EACH]
                found = gradients(parameters, known.images[which, taken], known.digits[which, taken])
                for total, one in zip(whole, found, strict=True):
                    total += one / row.times
            flat = comm.allreduce(np.concatenate([one.reshape(-1) for one in whole]), "avg")
            rounds += 1
            parts = np.split(flat, np.cumsum([one.size for one in whole])[:-1])
            for parameter, speed, part in zip(parameters, speeds, parts, strict=True):
                gradient = part.reshape(parameter.shape)
                speed *= MOMENTUM
                speed += _trust(parameter, gradient) * gradient if row.lars else gradient
                parameter -= rate * speed
    return *judged(parameters, known), rounds


def _trust(parameter: Array, gradient: Array) -> Array | float:
    """LARS's local rate of each model's matrix; biases, and what is zero, have 1."""
    if parameter.shape[1] == 1:
        return 1.0
    sizes = [np.linalg.norm(each, axis=(1, 2), keepdims=True) for each in (parameter, gradient)]
    local = TRUST * sizes[0] / np.maximum(sizes[1] + DECAY * sizes[0], 1e-12)
    return np.where(sizes[1] > 0, local, 1.0).astype(np.float32)


def main(argv: Sequence[str] | None = None) -> int:
    words = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m hocket.lab.outer.large_batch", description=words)
    parser.add_argument("--models", type=int, default=FOLDS * SEEDS, help="1 to 25 (25)")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(argv)
    with hocket.init() as comm:
        known = data(options.models, "iid")
        if comm.rank == 0:
            print(f"# {options.models} models of {len(LAYERS) - 1} layers, {comm.size} ranks, {options.epochs} epochs")
            print("| way | accuracy, % | loss in training | rounds |\n|---|---|---|---|")
        for name, row in ROWS.items():
            accuracy, loss, rounds = trained(comm, row, known, options.epochs)
            if comm.rank == 0:
                print(f"| {name} | {accuracy.mean():.2f} ± {accuracy.std():.2f} | {loss:.4f} | {rounds} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
