"""A server's work on a push: optimizers, and functions of the user's.

`apply(values, pushed, slots)` changes `values` in place, a vector of a slice or a matrix of rows (float32 or float64);
`slots` are arrays that the server keeps beside it, by the names in the optimizer's `slots`: as large as the values, or
one number (for rows one a row) where it says 1.  Slots begin as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hocket.arguments import choices
from hocket.errors import ArgumentError
from hocket.training.layered import Layered
from hocket.training.optimizers import SGD, Adagrad, Adam
from hocket.training.optimizers import Optimizer as Inner

Array = np.ndarray[Any, Any]
Slots = Mapping[str, Array]


class Optimizer:
    """The interface of an optimizer for tables."""

    slots: Mapping[str, int] = {}
    """By name: 0, as large as the values; 1, one number."""
    overwrites = False
    """Is what was pushed the values from then on?  Then a slice keeps the array that has come."""

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items() if k != 'slots')})"


class Sum(Optimizer):
    """values += pushed."""

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        np.add(values, pushed, out=values)


class Put(Optimizer):
    """values = pushed."""

    overwrites = True

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        values[...] = pushed


class Stepped(Optimizer):
    """An optimizer of vectors (training/optimizers.py).  A row counts its own steps: so Adam is torch's SparseAdam."""

    def __init__(self, inner: Inner) -> None:
        self.inner, self.slots = inner, {**dict.fromkeys(inner.slots, 0), "steps": 1}

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        steps = slots["steps"]
        steps += 1
        if values.ndim == 1:
            self.inner.apply(values, pushed.copy(), {name: slots[name] for name in self.inner.slots}, int(steps.item()))
            return
        for step in np.unique(steps):
            rows = np.flatnonzero(steps.reshape(-1) == step)
            some = [values[rows], *(slots[name][rows] for name in self.inner.slots)]
            flat, *kept = (each.reshape(-1) for each in some)
            named = dict(zip(self.inner.slots, kept, strict=True))
            self.inner.apply(flat, pushed[rows].reshape(-1), named, int(step))
            for home, changed in zip([values, *(slots[name] for name in self.inner.slots)], some, strict=True):
                home[rows] = changed

    def __repr__(self) -> str:
        return repr(self.inner)


class Function(Optimizer):
    """A user's own: `function(values, pushed)` changes `values` in place."""

    def __init__(self, function: Callable[[Array, Array], object]) -> None:
        self.function = function

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        self.function(values, pushed)

    def __repr__(self) -> str:
        return f"Function({getattr(self.function, '__qualname__', type(self.function).__name__)})"


NAMES: dict[str, Callable[[], Optimizer]] = {
    "sum": Sum, "put": Put, "sgd": lambda: Stepped(SGD(0.01)), "momentum": lambda: Stepped(SGD(0.01, 0.9)),
    "adagrad": lambda: Stepped(Adagrad(0.01)), "adam": lambda: Stepped(Adam()),
}  # fmt: skip


def optimizer(given: str | Optimizer | Inner | Callable[[Array, Array], object]) -> Optimizer:
    """One by name, one as it is, one of vectors, or a function as one."""
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, (SGD, Adagrad, Adam)):
        return Stepped(given)
    if isinstance(given, str) and given in NAMES:
        return NAMES[given]()
    if isinstance(given, Layered):
        why = "needs to know where each parameter begins, and a table does not: give it to Sharded"
        raise ArgumentError(f"optimizer={given!r} {why}; here take Adam, SGD or Adagrad")
    if callable(given):
        return Function(given)
    raise ArgumentError(f"optimizer={given!r} must be a name, an Optimizer or a function; {choices(given, [*NAMES])}")
