"""Handwritten digits, and a network of 64-256-256-10 (84,234 parameters) that learns them in NumPy.

Several models train side by side, each with a part of the data of its own to be tested with, so that one call carries
the gradients of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.arguments import choices
from hocket.errors import ArgumentError

Array = np.ndarray[Any, Any]
LAYERS = (64, 256, 256, 10)
EACH, RATE, MOMENTUM, FALLS = 16, 0.05, 0.9, 0.75
"""Images of a rank and step; the learning rate, which falls to a tenth after this part of the epochs."""
FOLDS, SEEDS = 5, 5
WORDS: dict[str, Any] = {"shards": "iid", "rows": "", "models": FOLDS * SEEDS}
"""Options of a table of trainings: the images to train with (iid, sorted), names of its rows, 1 to 25 models."""


class Data(NamedTuple):
    """The data of the models: each has images of its own to train and to be tested with."""

    images: Array
    """(models, count, 64) ..."""
    digits: Array
    """... and (models, count)."""
    tests: Array
    answers: Array


def data(models: int, shards: str) -> Data:
    """Model m is tested with part m mod 5.  Images to train with are in random order, or sorted by digit."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, digits = (images[order] / 16).astype(np.float32), digits[order]
    part = len(images) // FOLDS
    made = []
    for model in range(models):
        tested = np.zeros(len(images), bool)
        first = model % FOLDS * part
        tested[first : first + part] = True
        rest = np.flatnonzero(~tested)
        if shards == "sorted":
            rest = rest[np.argsort(digits[rest], kind="stable")]
        made.append((images[rest], digits[rest], images[tested], digits[tested]))
    return Data(*(np.stack(each) for each in zip(*made, strict=True)))


def tabled(
    options: Any, rows: Mapping[str, Any], usual: Callable[[str], Sequence[str]], between: str, columns: str,
    trained: Callable[..., Any], cost: Callable[[Any], str],
) -> int:  # fmt: skip
    """Train by each row that is asked for, else by the usual ones, and print what came of it.  An exit code.

    `between`: what parts the names of rows; `cost`: the cells behind accuracy and loss, of those columns.
    """
    names = options.rows.split(between) if options.rows else usual(options.shards)
    for name, among in (*((name, [*rows]) for name in names), (options.shards, ["iid", "sorted"])):
        if name not in among:
            raise ArgumentError(f"{name!r} is unknown; {choices(name, among)}")
    with hocket.init() as comm:
        known = data(options.models, options.shards)
        if comm.rank == 0:
            print(f"# {options.models} models, {comm.size} ranks, {options.shards} shards, {options.epochs} epochs")
            print(f"| method | accuracy, % | loss in training | {columns} |\n|---|---|---|---|---|---|")
        for name in names:
            made = trained(comm, rows[name], known, options.epochs, options.shards)
            if comm.rank == 0:
                spread = f"{made.accuracy.mean():.2f} ± {made.accuracy.std():.2f}"
                print(f"| {name} | {spread} | {made.loss:.4f} | {cost(made)} |", flush=True)
    return 0


def weights(models: int) -> list[Array]:
    """Matrices of (models, in, out), then biases of (models, 1, out)."""
    dice = [np.random.default_rng([7, model]) for model in range(models)]
    sides = list(zip(LAYERS[:-1], LAYERS[1:], strict=True))
    matrices = [np.stack([d.normal(0, math.sqrt(2 / a), (a, b)) for d in dice]).astype(np.float32) for a, b in sides]
    return matrices + [np.zeros((models, 1, b), np.float32) for _, b in sides]


def forward(parameters: Sequence[Array], x: Array) -> list[Array]:
    """The input of each layer, and the logarithms of the digits' probabilities."""
    layers, depth = [x], len(LAYERS) - 1
    for i in range(depth):
        x = layers[-1] @ parameters[i] + parameters[depth + i]
        layers.append(np.maximum(x, 0))
    x -= x.max(-1, keepdims=True)
    layers[-1] = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return layers


def gradients(parameters: Sequence[Array], x: Array, digits: Array) -> list[Array]:
    """The gradients of the mean cross-entropy, like the parameters."""
    layers, depth = forward(parameters, x), len(LAYERS) - 1
    error = np.exp(layers[-1])
    np.put_along_axis(error, digits[..., None], np.take_along_axis(error, digits[..., None], -1) - 1, -1)
    error /= x.shape[1]
    found: list[Array] = [error] * (2 * depth)
    for i in reversed(range(depth)):
        found[i], found[depth + i] = layers[i].swapaxes(1, 2) @ error, error.sum(1, keepdims=True)
        if i:
            error = (error @ parameters[i].swapaxes(1, 2)) * (layers[i] > 0)
    return found


def judged(parameters: Sequence[Array], known: Data) -> tuple[Array, float]:
    """Each model's accuracy in percent, and the loss of all on the images that they were trained with."""
    right = forward(parameters, known.tests)[-1].argmax(-1) == known.answers
    losses = -np.take_along_axis(forward(parameters, known.images)[-1], known.digits[..., None], -1)
    return 100 * right.mean(1), float(losses.mean())


def rate_of(epoch: int, epochs: int) -> float:
    """The learning rate."""
    return RATE * (1 if epoch < FALLS * epochs else 0.1)
