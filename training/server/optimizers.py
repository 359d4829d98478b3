"""What a server does with a push: optimizers, and functions of the user's.

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

Array = np.ndarray[Any, Any]
Slots = Mapping[str, Array]


class Optimizer:
    """What tables need of one."""

    slots: Mapping[str, int] = {}
    """By name: 0, as large as the values; 1, one number."""

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

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        values[...] = pushed


class SGD(Optimizer):
    """values -= lr m with m = momentum m + pushed (Polyak, 1964, as torch has it); without momentum m = pushed."""

    def __init__(self, lr: float = 0.01, momentum: float = 0.0) -> None:
        self.lr, self.momentum = lr, momentum
        self.slots = {"momentum": 0} if momentum else {}

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        if self.momentum:
            m = slots["momentum"]
            m *= m.dtype.type(self.momentum)
            m += pushed
            pushed = m
        values -= values.dtype.type(self.lr) * pushed


class Adagrad(Optimizer):
    """a += pushed^2; values -= lr pushed / (sqrt(a) + epsilon) (Duchi, Hazan and Singer, JMLR 2011).  Downpour's."""

    slots = {"squares": 0}

    def __init__(self, lr: float = 0.01, epsilon: float = 1e-10) -> None:
        self.lr, self.epsilon = lr, epsilon

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        kind, a = values.dtype.type, slots["squares"]
        a += pushed * pushed
        values -= kind(self.lr) * pushed / (np.sqrt(a) + kind(self.epsilon))


class Adam(Optimizer):
    """Kingma and Ba, ICLR 2015, algorithm 1; a row counts its own steps, so it is torch's SparseAdam."""

    slots = {"first": 0, "second": 0, "steps": 1}

    def __init__(self, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        self.lr, self.beta1, self.beta2, self.epsilon = lr, beta1, beta2, epsilon

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        kind, first, second, steps = values.dtype.type, slots["first"], slots["second"], slots["steps"]
        steps += 1
        first += kind(1 - self.beta1) * (pushed - first)
        second += kind(1 - self.beta2) * (pushed * pushed - second)
        one, two = 1 - kind(self.beta1) ** steps, 1 - kind(self.beta2) ** steps
        values -= kind(self.lr) * (first / one) / (np.sqrt(second / two) + kind(self.epsilon))


class Function(Optimizer):
    """A user's own: `function(values, pushed)` changes `values` in place."""

    def __init__(self, function: Callable[[Array, Array], object]) -> None:
        self.function = function

    def apply(self, values: Array, pushed: Array, slots: Slots) -> None:
        self.function(values, pushed)

    def __repr__(self) -> str:
        return f"Function({getattr(self.function, '__qualname__', type(self.function).__name__)})"


NAMES: dict[str, Callable[[], Optimizer]] = {
    "sum": Sum, "put": Put, "sgd": SGD, "momentum": lambda: SGD(momentum=0.9), "adagrad": Adagrad, "adam": Adam,
}  # fmt: skip


def optimizer(given: str | Optimizer | Callable[[Array, Array], object]) -> Optimizer:
    """One by name, one as it is, or a function as one."""
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str) and given in NAMES:
        return NAMES[given]()
    if callable(given):
        return Function(given)
    raise ArgumentError(f"optimizer={given!r}: {choices(given, [*NAMES])}; or an Optimizer, or a function")
