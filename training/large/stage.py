"""The common form of a model's parts, so that each can stand in another: layers in a stage of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hocket.compression.memory import is_array
from hocket.errors import ArgumentError
from hocket.training.flat import Array, digest


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

    def again(self, x: Array) -> list[Any]:
        """The part that `forward` keeps, without its result."""
        kept = []
        for layer in self.layers[:-1]:
            x, needed = layer.forward(x)
            kept.append(needed)
        return [*kept, _again(self.layers[-1], x)] if self.layers else kept

    def random_state(self) -> list[Any]:
        """The state of each layer that draws random numbers."""
        return [_state(layer) for layer in self.layers]

    def set_random_state(self, states: list[Any]) -> None:
        for layer, state in zip(self.layers, states, strict=True):
            _set_state(layer, state)


class Input(NamedTuple):
    """All that a `Recomputed` keeps of a forward pass."""

    x: Array
    state: Any
    """The state of its random numbers before the pass."""
    digest: int
    """The digest of its result; -1: it is known to be the same again."""


class Recomputed:
    """A stage that keeps its input alone: its backward pass makes the forward pass again.  A `Stage`, too.

    Memory: inputs, and what one pass keeps, in place of what all passes keep that are under way.  Time: a forward pass
    more; 4/3 where a backward pass takes twice as long as a forward one.  A stage may have `again(x)`: what `forward`
    keeps, without its result; so a `RowParallel` at the end of a `Chain` sends nothing the second time.

    A stage that draws random numbers has `random_state()` and `set_random_state(state)`: then it draws the same ones.
    ArgumentError, in the first backward pass, of one that has not, and gives another result the second time.
    Sources: Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174; Huang et al., "GPipe",
    NeurIPS 2019.
    """

    def __init__(self, stage: Any) -> None:
        self.stage, self._known = stage, False

    def __getattr__(self, name: str) -> Any:
        if name == "stage":  # copy and pickle ask before there is one
            raise AttributeError(name)
        return getattr(self.stage, name)

    def forward(self, x: Array) -> tuple[Array, Input]:
        state = _state(self.stage)
        y, _ = self.stage.forward(x)
        return y, Input(x, state, -1 if self._known else _digest(y))

    def backward(self, dy: Array, kept: Input) -> Array:
        now = _state(self.stage)
        _set_state(self.stage, kept.state)
        if kept.digest < 0:
            needed = _again(self.stage, kept.x)
        else:
            y, needed = self.stage.forward(kept.x)
            if _digest(y) != kept.digest:
                raise ArgumentError(
                    f"recompute: the forward pass of {self.stage!r} gave another result the second time. If it draws "
                    "random numbers, give it random_state() and set_random_state(state); else leave recompute out"
                )
            self._known = True
        _set_state(self.stage, now)
        return self.stage.backward(dy, needed)


def _digest(y: Any) -> int:
    return digest(y if is_array(y) else np.asarray(y))


def _again(stage: Any, x: Array) -> Any:
    return stage.again(x) if hasattr(stage, "again") else stage.forward(x)[1]


def _state(stage: Any) -> Any:
    return stage.random_state() if hasattr(stage, "random_state") else None


def _set_state(stage: Any, state: Any) -> None:
    if hasattr(stage, "set_random_state"):
        stage.set_random_state(state)
