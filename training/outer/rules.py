"""Rules: what the average of all ranks' outer gradients does to the outer parameters."""

from __future__ import annotations

from typing import Protocol

from hocket.compression.method import chunks
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.optimizers import descend

CHUNK = 1 << 15
"""Elements that stay in a core's cache from one pass to the next."""


class Rule(Protocol):
    """An outer optimizer.  It has no state of its own: that is vectors as long as the parameters, `slots`, by name."""

    slots: tuple[str, ...]

    def apply(self, phi: Array, gradient: Array, slots: dict[str, Array]) -> None:
        """Change `phi` in place.  `gradient`: the average of phi - theta; may be overwritten."""


class Average:
    """phi becomes the average of all ranks' theta: phi -= gradient."""

    slots: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "average"

    def apply(self, phi: Array, gradient: Array, slots: dict[str, Array]) -> None:
        phi -= gradient


class Momentum:
    """SGD with momentum, as torch's: m = momentum m + gradient; phi -= lr (gradient + momentum m), or lr m without
    Nesterov's.

    With lr 1 and momentum 0 it is `Average`, bit for bit.  Source: Sutskever et al., "On the importance of
    initialization and momentum in deep learning", ICML 2013.
    """

    def __init__(self, lr: float, momentum: float = 0.0, nesterov: bool = False) -> None:
        if not 0 < lr < float("inf"):
            raise ArgumentError(f"lr={lr!r} must be a number above 0: the outer learning rate")
        if not 0 <= momentum < 1:
            raise ArgumentError(f"momentum={momentum!r} must be at least 0 and below 1: the outer momentum")
        self.lr, self.momentum, self.nesterov = lr, momentum, nesterov
        self.slots: tuple[str, ...] = ("momentum",) if momentum else ()

    def __repr__(self) -> str:
        return f"{'nesterov' if self.nesterov else 'momentum'} {self.momentum:g}, lr {self.lr:g}"

    def apply(self, phi: Array, gradient: Array, slots: dict[str, Array]) -> None:
        for one in chunks(phi, CHUNK):
            descend(phi, gradient[one], slots, one, float(self.lr), float(self.momentum), self.nesterov)
