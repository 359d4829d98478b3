"""The gradients of an optimizer's parameters: sent when the backward pass has made them, and waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from hocket.torch.errors import ArgumentError
from hocket.training import Timing

Tensor = torch.Tensor
TOO_OFTEN = (
    "{}: its gradient was computed more than passes={} times before step(): say passes=, so that gradients of several "
    "backward passes are added up first; where the last step was left out (an exception, a bad batch), call "
    "optimizer.zero_grad() instead of it, on all ranks"
)
FROZEN = "{}: it was frozen when the DistributedOptimizer was made, and now has a gradient: make the optimizer anew"
CHANGED = (
    "{}: its gradient was changed between backward() and step(), while it is averaged: call optimizer.synchronize() "
    "first (to clip, to unscale, to scale)"
)
CLOSED = (
    "this DistributedOptimizer is closed, by close() or as another one was made of some of its parameters: use that one"
)


class Averages(Protocol):
    """A party that averages gradients while the backward pass goes on: `hocket.training.Scheduler`, or what another
    library's users have in its place.
    """

    def declare(self, name: str, like: Any) -> None: ...
    def seal(self) -> None: ...
    def ready(self, name: str, grad: Any) -> None: ...
    def step(self) -> list[str]: ...
    def wait(self, name: str) -> Any: ...
    def report(self) -> list[Timing]: ...
    def close(self) -> None: ...


class Gradients:
    """The gradients of `names`, by parameter, in the order of the forward pass.

    `passes`: backward passes whose gradients are added up on each rank.  `anywhere`: of each flag, is it set on some
    rank?  None: nobody asks, and sparse gradients are given to `averages` as they are.  `watched`: nothing but `wait`
    writes a gradient that was sent, so what else changes it is found.  `exact`: each pass's gradient is sent, too.
    """

    def __init__(
        self, averages: Averages, names: dict[Tensor, str], passes: int,
        anywhere: Callable[[list[bool]], list[bool]] | None, watched: bool, exact: bool = False,
    ) -> None:  # fmt: skip
        self.averages, self.names, self.passes = averages, names, passes
        self._anywhere, self._watched, self._exact = anywhere, watched, exact
        self._earlier: dict[Tensor, list[Tensor]] = {}
        """The gradients of earlier passes of this step, where each is an addend of its own."""
        self.params = [p for p in names if p.requires_grad]
        self.left = dict.fromkeys(self.params, passes)
        """By parameter: backward passes until its gradient is ready."""
        self.sent: dict[Tensor, tuple[Tensor, int]] = {}
        """The gradients that are ready in this step, with torch's counter of their changes ..."""
        self._given: set[Tensor] = set()
        """... and whose were in the one before, ..."""
        self._own_sparse: set[Tensor] = set()
        """... of which these were sparse on this rank."""
        self._kinds: dict[Tensor, bool] = {}
        """Are the gradients sparse?  By parameter, once some rank has used it."""
        self.closed = False
        for p in self.params:
            averages.declare(names[p], p.detach())
        averages.seal()

    def made(self, p: Tensor) -> None:
        """backward() has added to its gradient."""
        if self.left[p] <= 0:
            raise ArgumentError(TOO_OFTEN.format(self.names[p], self.passes))
        self.left[p] -= 1
        if self.left[p] == 0:
            self._ready(p)
        elif self._exact and p.grad is not None:
            self._earlier.setdefault(p, []).append(p.grad.to_dense() if p.grad.is_sparse else p.grad)
            p.grad = None

    def _ready(self, p: Tensor) -> None:
        assert p.grad is not None
        turned = p.grad.is_sparse and self._anywhere is not None
        self.sent[p] = p.grad, p.grad._version
        self.left[p] = 0
        grad = p.grad.to_dense() if turned else p.grad
        if p in self._earlier:
            exactly: Any = self.averages  # a Scheduler
            exactly.ready(self.names[p], grad, self._earlier.pop(p))
        else:
            self.averages.ready(self.names[p], grad)

    def end(self) -> None:
        """No more comes in this step; gradients of fewer passes are sent as they are."""
        if self.closed:
            raise ArgumentError(CLOSED)
        for p, earlier in self._earlier.items():
            p.grad = earlier.pop() if p.grad is None and p not in self.sent else p.grad
        for p in self.params:
            if p.grad is not None and p not in self.sent:
                self._ready(p)
        thawed = [name for p, name in self.names.items() if p.grad is not None and p not in self.left]
        if thawed:
            raise ArgumentError(FROZEN.format(thawed[0]))
        for p, (grad, version) in self.sent.items() if self._watched else ():
            if p.grad is not grad or grad._version != version:
                raise ArgumentError(CHANGED.format(self.names[p]))
        self.averages.step()
        self._given = set(self.sent)
        self._own_sparse = {p for p, (grad, _) in self.sent.items() if grad.is_sparse}
        self.reset()

    def drop(self) -> None:
        """This step is left out, on all ranks: averages that are under way come, and are forgotten."""
        if self.sent:
            self.averages.step()
            for p in self.params:
                self.averages.wait(self.names[p])
        self.reset()

    def reset(self) -> None:
        """Nothing is ready for the next step."""
        self.sent, self._earlier = {}, {}
        self.left = dict.fromkeys(self.params, self.passes)

    def take_all(self) -> None:
        """Wait for all averages; each is its parameter's gradient then, or None if no rank had one.

        It is sparse if some rank's was: SparseAdam takes no other, on ranks without a row of it either.  Ranks tell
        each other in the step in which some rank has used a parameter for the first time, which all ranks know.
        """
        made = self._waited(self.params)
        new = [p for p in self.params if made[p] is not None and p not in self._kinds]
        if new and self._anywhere is not None:
            self._kinds.update(zip(new, self._anywhere([p in self._own_sparse for p in new]), strict=True))
        for p, grad in made.items():
            turned = grad is not None and not grad.is_sparse and (p in self._own_sparse or self._kinds.get(p))
            p.grad = grad.to_sparse(1) if turned else grad

    @property
    def sparse(self) -> bool:
        """Are gradients of some parameter sparse?  The same on all ranks."""
        return any(self._kinds.values())

    def take(self, params: Sequence[Tensor]) -> None:
        """Wait for these averages, and leave them dense."""
        for p, grad in self._waited(params).items():
            p.grad = grad

    def _waited(self, params: Sequence[Tensor]) -> dict[Tensor, Any]:
        found: dict[Tensor, Any] = {}
        for p in params:
            made = self.averages.wait(self.names[p])
            found[p] = made.clone() if made is not None and p not in self._given else made  # the scheduler's memory
        return found
