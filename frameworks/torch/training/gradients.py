"""The gradients of an optimizer's parameters: made ready by hooks in the backward pass, and waited for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch

from hocket.torch.errors import ArgumentError
from hocket.training import Timing

Tensor = torch.Tensor
TOO_OFTEN = (
    "{}: its gradient was computed more than passes={} times before step(): say passes=, so that gradients of several "
    "backward passes are added up first"
)
FROZEN = "{}: it was frozen when the DistributedOptimizer was made, and now has a gradient: make the optimizer anew"


class Averages(Protocol):
    """What averages gradients while the backward pass goes on: `hocket.training.Scheduler`, or what another library's
    users have in its place.
    """

    def declare(self, name: str, like: Any) -> None: ...
    def seal(self) -> None: ...
    def ready(self, name: str, grad: Any) -> None: ...
    def step(self) -> list[str]: ...
    def wait(self, name: str) -> Any: ...
    def report(self) -> list[Timing]: ...


class Gradients:
    """Those of `names`, by parameter, in the order of the forward pass.

    `sparse`: are sparse gradients given to `averages` as they are?
    `passes`: backward passes whose gradients are added up on each rank.  `before`: called with a parameter whose
    gradient was made.
    """

    def __init__(
        self, averages: Averages, names: dict[Tensor, str], passes: int, before: Callable[[Tensor], object],
        sparse: bool = False,
    ) -> None:  # fmt: skip
        self.averages, self.names, self.passes = averages, names, passes
        self._before, self._takes_sparse = before, sparse
        self.params = [p for p in names if p.requires_grad]
        self.left = dict.fromkeys(self.params, passes)
        """By parameter: backward passes until its gradient is ready."""
        self.sent: set[Tensor] = set()
        """Those that are ready in this step ..."""
        self._given: set[Tensor] = set()
        """... and those that were in the one before."""
        self._sparse: set[Tensor] = set()
        for p in self.params:
            averages.declare(names[p], p.detach())
        averages.seal()
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
        turned = p.grad.is_sparse and not self._takes_sparse
        if turned:
            self._sparse.add(p)
        self.sent.add(p)
        self.left[p] = 0
        self.averages.ready(self.names[p], p.grad.to_dense() if turned else p.grad)

    def end(self) -> None:
        """No more comes in this step; gradients of fewer passes are sent as they are."""
        for p in self.params:
            if p.grad is not None and p not in self.sent:
                self._ready(p)
        thawed = [name for p, name in self.names.items() if p.grad is not None and p not in self.left]
        if thawed:
            raise ArgumentError(FROZEN.format(thawed[0]))
        self.averages.step()
        self._given = self.sent
        self.reset()

    def reset(self) -> None:
        """Nothing is ready for the next step."""
        self.sent = set()
        self.left = dict.fromkeys(self.params, self.passes)

    def take(self, params: Collection[Tensor]) -> None:
        """Wait for these averages; each is its parameter's gradient then, or None if no rank had one."""
        for p in params:
            made: Any = self.averages.wait(self.names[p])
            if made is not None and p not in self._given:
                made = made.clone()  # it is the scheduler's memory
            p.grad = made.to_sparse(1) if p in self._sparse else made
        self._sparse.difference_update(params)
