"""Local SGD: every `every` steps theta becomes the average of all ranks' theta.

Law: every = 1 is synchronous SGD, to rounding, also with momentum kept on each rank.  Traffic: that of an allreduce of
the parameters, 1 / every as often.

Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019 (arXiv 1805.09767).  Post-local: Lin et
al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020 (arXiv 1808.07217).
"""

from __future__ import annotations

from typing import Any

from hocket.arguments import whole
from hocket.errors import ArgumentError
from hocket.training.outer.outer import Outer
from hocket.training.outer.rules import Average


class LocalSGD(Outer):
    """Average the parameters every `every` steps.  More arguments: those of `Outer`.

    >>> import hocket, numpy as np
    >>> def train(comm):
    ...     theta = {"w": np.zeros(1, np.float32)}
    ...     outer = LocalSGD(comm, theta, every=2)
    ...     for step in range(4):
    ...         theta["w"] += comm.rank            # the inner optimizer's step
    ...         outer.step()
    ...     return theta["w"].tolist()
    >>> hocket.local_world(2).run(train)
    [[2.0], [2.0]]
    """

    kind = "local_sgd/1"

    def __init__(self, members: Any, parameters: Any, *, every: int, **more: Any) -> None:
        super().__init__(members, parameters, rule=Average(), every=every, **more)


class PostLocalSGD(LocalSGD):
    """Average after each of the first `start` steps, then every `every` steps."""

    kind = "post_local_sgd/1"

    def __init__(self, members: Any, parameters: Any, *, start: int, every: int, **more: Any) -> None:
        self.start = whole(start, "start")
        if self.start < 0:
            raise ArgumentError(f"start={start} must be at least 0: the steps with an average after each")
        if more.get("fragments", 1) != 1 or more.get("delay", 0):
            raise ArgumentError("PostLocalSGD averages everything at once: pass fragments=1 and delay=0")
        if more.get("by", "steps") != "steps":
            raise ArgumentError('PostLocalSGD averages after each of the first steps: pass by="steps"')
        super().__init__(members, parameters, every=every, **more)

    def due(self, number: int) -> int:
        return number if number <= self.start else self.start + (number - self.start) * self.every
