"""The problem that ranks train on in tests: each its own quadratic, with some noise, in a few named arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SHAPES = {"w": (40, 20), "b": (5,), "v": (3, 2, 2), "c": ()}
LR = 0.1
F = np.float32


def start(kind: Any = np.float32) -> dict[str, Array]:
    return {name: np.array(np.random.default_rng(3).normal(size=shape), kind) for name, shape in SHAPES.items()}


def flat(theta: dict[str, Array]) -> Array:
    return np.concatenate([each.reshape(-1) for each in theta.values()])


def gradient(rank: int, step: int, theta: dict[str, Array]) -> dict[str, Array]:
    """The gradient of a rank's own quadratic, with some noise."""
    dice = np.random.default_rng([rank, step])
    return {name: (x - F(rank) + dice.normal(size=x.shape)).astype(x.dtype) for name, x in theta.items()}


def inner(rank: int, step: int, theta: dict[str, Array], lr: float = LR) -> None:
    for name, g in gradient(rank, step, theta).items():
        theta[name] -= F(lr) * g


def put(theta: dict[str, Array], vector: Array) -> None:
    at = 0
    for x in theta.values():
        x[...] = vector[at : at + x.size].reshape(x.shape)
        at += x.size
