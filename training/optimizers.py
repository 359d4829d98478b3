"""Optimizers of flat vectors.  They work element by element: a vector that is cut among ranks ends with the same bits.

They have no state of their own: that is vectors as long as the parameters, `slots` by name, and the number of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

from hocket.compression import method
from hocket.compression.memory import namespace
from hocket.errors import ArgumentError
from hocket.training.flat import Array

CHUNK = 1 << 14
"""Elements that stay in a core's cache from one pass to the next."""


class Optimizer(Protocol):
    """The interface of an optimizer that `Sharded` steps with."""

    slots: tuple[str, ...]
    """Names of its vectors, which are zeros at first."""

    def apply(self, x: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Change `x` and the slots in place.  `step`: 1, 2, ...  `gradient` may be overwritten."""


class SGD:
    """Stochastic gradient descent like torch's: m = momentum m + g; x -= lr m, or with `nesterov` lr (g + momentum m).

    Memory: a vector of momentum, if that is not 0.
    """

    def __init__(self, lr: float, momentum: float = 0.0, nesterov: bool = False, decay: float = 0.0) -> None:
        self.lr, self.momentum, self.nesterov = positive(lr, "lr"), share(momentum, "momentum"), nesterov
        self.decay = least(decay, "decay")
        self.slots: tuple[str, ...] = ("momentum",) if momentum else ()

    def __repr__(self) -> str:
        return f"SGD(lr={self.lr:g}, momentum={self.momentum:g}, nesterov={self.nesterov}, decay={self.decay:g})"

    def apply(self, x: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        for one in chunks(x):
            change = gradient[one]
            if self.decay:
                change += float(self.decay) * x[one]
            descend(x, change, slots, one, float(self.lr), float(self.momentum), self.nesterov)


def descend(
    x: Array, change: Array, slots: dict[str, Array], one: slice, lr: float, momentum: float, nesterov: bool
) -> None:
    """A step of SGD, of these elements, whose gradient is `change`."""
    if momentum:
        m = slots["momentum"][one]
        m *= momentum
        m += change
        change = change + momentum * m if nesterov else m
    w = x[one]
    w -= lr * change


class Adagrad:
    """s += g g; x -= lr g / (sqrt(s) + eps).  Duchi et al., JMLR 2011.  Memory: one vector."""

    slots: tuple[str, ...] = ("squares",)

    def __init__(self, lr: float, eps: float = 1e-10) -> None:
        self.lr, self.eps = positive(lr, "lr"), positive(eps, "eps")

    def __repr__(self) -> str:
        return f"Adagrad(lr={self.lr:g}, eps={self.eps:g})"

    def apply(self, x: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        lr, xp = float(self.lr), namespace(x)
        for one in chunks(x):
            w, g, s = x[one], gradient[one], slots["squares"][one]
            s += g * g
            w -= lr * g / (xp.sqrt(s) + float(self.eps))


class Adam:
    """Adam like torch's, and AdamW with `decay`: x -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps).

    Kingma and Ba, arXiv 1412.6980; decay that is decoupled: Loshchilov and Hutter, arXiv 1711.05101.  Memory: two
    vectors.
    """

    slots: tuple[str, ...] = ("m", "v")

    def __init__(
        self, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.0
    ) -> None:
        self.lr, self.eps, self.decay = positive(lr, "lr"), positive(eps, "eps"), least(decay, "decay")
        self.betas = share(betas[0], "betas"), share(betas[1], "betas")

    def __repr__(self) -> str:
        return f"Adam(lr={self.lr:g}, betas={self.betas}, eps={self.eps:g}, decay={self.decay:g})"

    def apply(self, x: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        lr = float(self.lr)
        for one in chunks(x):
            w, g = x[one], gradient[one]
            moments(g, slots["m"][one], slots["v"][one], self.betas, step, float(self.eps))
            if self.decay:
                w *= 1 - lr * float(self.decay)
            g *= lr / (1 - self.betas[0] ** step)
            w -= g


def moments(g: Array, m: Array, v: Array, betas: tuple[float, float], step: int, eps: float) -> None:
    """Adam's: change m and v by the gradient g, which becomes m / (sqrt(v) / sqrt(1 - b2^t) + eps)."""
    (b1, b2), xp = betas, namespace(g)
    m *= b1
    m += (1 - b1) * g
    v *= b2
    g *= g
    g *= 1 - b2
    v += g
    xp.sqrt(v, out=g)
    g /= math.sqrt(1 - b2**step)
    g += eps
    xp.divide(m, g, out=g)


def chunks(x: Array) -> Iterator[slice]:
    """Pieces of it, one after the other; on a GPU one of all."""
    return method.chunks(x, CHUNK)


def _number(wanted: str, fits: Callable[[float], bool]) -> Callable[[float, str], float]:
    def checked(value: float, what: str) -> float:
        if not isinstance(value, (int, float)) or not fits(value):
            raise ArgumentError(f"{what}={value!r} must be a number {wanted}")
        return float(value)

    return checked


positive = _number("above 0", lambda value: 0 < value < math.inf)
least = _number("of at least 0", lambda value: 0 <= value < math.inf)
share = _number("of at least 0 and below 1", lambda value: 0 <= value < 1)
