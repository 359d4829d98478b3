"""The gradients of an optimizer's parameters: made ready by hooks in the backward pass, and waited for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from hocket.torch.failing import ArgumentError
from hocket.training import Scheduler

Tensor = torch.Tensor
TOO_OFTEN = (
    "{}: its gradient was computed more than passes={} times before step(): say passes=, so that gradients of several "
    "backward passes are added up first"
)
FROZEN = "{}: it was frozen when the DistributedOptimizer was made, and now has a gradient: make the optimizer anew"


class Gradients:
    """Those of `names`, by parameter, in the order of the forward pass.

    `passes`: backward passes whose gradients are added up on each rank.  `before`: called with a parameter whose
    gradient was made.
    """

    def __init__(
        self, scheduler: Scheduler, names: dict[Tensor, str], passes: int, before: Callable[[Tensor], object]
    ) -> None:
        self.scheduler, self.names, self.passes, self._before = scheduler, names, passes, before
        self.params = [p for p in names if p.requires_grad]
        self.left = dict.fromkeys(self.params, passes)
        """By parameter: backward passes until its gradient is ready."""
        self._sent: set[Tensor] = set()
        """Those that are ready in this step ..."""
        self._given: set[Tensor] = set()
        """... and those that were in the one before."""
        self._sparse: set[Tensor] = set()
        for p in self.params:
            scheduler.declare(names[p], p.detach())
        scheduler.seal()
        each: Any
        for each in self.params:
            each.register_post_accumulate_grad_hook(self._made)

    def _made(self, p: Tensor) -> None:
        """backward() has added to its gradient."""
        self._before(p)
        if self.left[p] <= 0:
            raise ArgumentError(TOO_OFTEN.format(self.names[p], self.passes))
        self.left[p] -= 1
        if self.left[p] == 0:
            self._ready(p)

    def _ready(self, p: Tensor) -> None:
        assert p.grad is not None
        if p.grad.is_sparse:
            self._sparse.add(p)
        self._sent.add(p)
        self.left[p] = 0
        self.scheduler.ready(self.names[p], p.grad.to_dense() if p.grad.is_sparse else p.grad)

    def end(self) -> None:
        """No more comes in this step; gradients of fewer passes are sent as they are."""
        for p in self.params:
            if p.grad is not None and p not in self._sent:
                self._ready(p)
        thawed = [name for p, name in self.names.items() if p.grad is not None and p not in self.left]
        if thawed:
            raise ArgumentError(FROZEN.format(thawed[0]))
        self.scheduler.step()
        self._sent, self._given = set(), self._sent
        self.left = dict.fromkeys(self.params, self.passes)

    def take(self, params: Collection[Tensor]) -> None:
        """Wait for these averages; each is its parameter's gradient then, or None if no rank had one."""
        for p in params:
            made: Any = self.scheduler.wait(self.names[p])
            if made is not None and p not in self._given:
                made = made.clone()  # it is the scheduler's memory
            p.grad = made.to_sparse(1) if p in self._sparse else made
        self._sparse.difference_update(params)
