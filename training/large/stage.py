"""The common form of a model's parts, so that each can stand in another: layers in a stage of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hocket.training.flat import Array


class Stage(Protocol):
    """A part of the model.  Several forward passes may come before their backward passes."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """The result, and what the backward pass of this x needs."""

    def backward(self, dy: Array, kept: Any) -> Array:
        """The gradient of x; those of the weights are added up inside."""


class Chain:
    """Layers, one after the other, as one stage."""

    def __init__(self, layers: Sequence[Stage]) -> None:
        self.layers = [*layers]

    def forward(self, x: Array) -> tuple[Array, list[Any]]:
        kept = []
        for layer in self.layers:
            x, needed = layer.forward(x)
            kept.append(needed)
        return x, kept

    def backward(self, dy: Array, kept: list[Any]) -> Array:
        for layer, needed in zip(reversed(self.layers), reversed(kept), strict=True):
            dy = layer.backward(dy, needed)
        return dy
