"""DiLoCo: what `every` inner steps have changed, averaged, is the gradient of an outer SGD with Nesterov momentum.

    D = phi - mean theta;  m = momentum m + D;  phi -= lr (D + momentum m);  theta = phi

Law: lr = 1, momentum = 0 is local SGD, bit for bit.  Traffic: as local SGD's.  Memory: phi and m.  0.7 and 0.9 are for
hundreds of rounds: a training of fewer does better with momentum up to 0.5.

Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv 2311.08105).
"""

from __future__ import annotations

from typing import Any

from hocket.training.outer.outer import Outer
from hocket.training.outer.rules import Momentum


class DiLoCo(Outer):
    """An outer SGD with Nesterov momentum.  More arguments: those of `Outer`."""

    kind = "diloco/1"

    def __init__(
        self, members: Any, parameters: Any, *, every: int = 500, lr: float = 0.7, momentum: float = 0.9, **more: Any
    ) -> None:
        super().__init__(members, parameters, rule=Momentum(lr, momentum, nesterov=True), every=every, **more)
