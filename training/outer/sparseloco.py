"""SparseLoCo: a few elements of what `every` steps have changed, two bits each; the rest is owed to later rounds.

    e = decay e + phi - theta;  s = the largest of each chunk of e, in two bits;  e -= s;  phi -= lr mean s

Law: with a density of 1 and floats (`send=None`), it is local SGD at lr 1.  No outer momentum: what is owed does its
work.  Traffic: (p-1)/162 of a vector from each rank in a round, at 1 % (`TwoBits`).

Source: Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo" (arXiv 2508.15706).
"""

from __future__ import annotations

from typing import Any

from hocket.compression import TwoBits
from hocket.training.outer.outer import Outer
from hocket.training.outer.rules import Momentum
from hocket.training.outer.sending import Send

USUAL: Send = TwoBits(0.01)


class SparseLoCo(Outer):
    """Chunk-local top-k in two bits, with error feedback that decays.  More arguments: those of `Outer`."""

    kind = "sparseloco/1"

    def __init__(
        self, members: Any, parameters: Any, *, every: int = 30, lr: float = 1.0, decay: float = 0.95,
        send: Send = USUAL, **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(members, parameters, rule=Momentum(lr), every=every, send=send, decay=decay, **more)
