"""`DistributedOptimizer`: an optimizer that steps by the gradients of all ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from hocket.errors import ArgumentError
from hocket.horovod.basics import Adasum, Average, size
from hocket.horovod.process_sets import ProcessSet, global_process_set
from hocket.horovod.torch import calls, gradients
from hocket.horovod.torch.compression import Compression
from hocket.horovod.torch.gradients import Averages
from hocket.torch.training.optimizer import Distributed as Steps
from hocket.torch.training.optimizer import derived, stepping

Tensor = torch.Tensor
BEFORE_STEP = (
    "optimizer.zero_grad() was called between backward() and step() or synchronize(), while the gradients are being "
    "reduced: call it before backward(), or after step()"
)
TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): the gradients are "
    "reduced twice.  Say: with optimizer.skip_synchronize(): optimizer.step()"
)
TOO_OFTEN = (
    "gradients were computed more than backward_passes_per_step times before step() or synchronize(): say "
    "backward_passes_per_step=, so that gradients of several passes are added up on each rank first"
)


class Distributed(Steps):
    """The methods that are added to the optimizer's class: Horovod's names and rules."""

    _skips = False

    @property
    def _parameter_names(self) -> dict[Tensor, str]:
        return self._names

    _names: dict[Tensor, str]
    _averages: Averages

    @contextlib.contextmanager
    def skip_synchronize(self) -> Generator[None, None, None]:
        """Steps inside do not reduce the gradients, as synchronize() has done it: to clip them before."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients, and step.  A closure is called by the optimizer; what it computes is reduced."""
        if closure is None:
            asked, self._asked = self._asked and self._synchronized, False
            if self._synchronized and not (self._skips or asked):
                warnings.warn(TWICE, stacklevel=2)
            self._synchronized = self._skips or asked
        return super().step(closure)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer's own zero_grad.  AssertionError while gradients are being reduced."""
        if self._gradients.sent:
            raise AssertionError(BEFORE_STEP)
        above: Any = super()
        above.zero_grad(*args, **kwargs)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """From now on gradients are added up over so many backward passes."""
        self._gradients.passes = passes
        self._gradients.reset()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer's own load_state_dict; gradients that are being reduced are forgotten."""
        self._leave_out()
        self._synchronized = False
        super().load_state_dict(*args, **kwargs)

    def _leave_out(self) -> None:
        """By this rank alone: after a loss the others may have sent other gradients, to a job that is gone."""
        self._averages.reset()
        self._gradients.reset()

    def _made(self, p: Tensor) -> None:
        if self._gradients.left[p] <= 0:
            raise AssertionError(TOO_OFTEN)
        super()._made(p)


class DistributedAdasum:
    """The methods that are added for op Adasum: each rank steps by its own gradients, and the ranks combine their
    steps.

    They are combined after the whole step, none while backward() goes on.
    """

    _names: dict[Tensor, str]
    _compression: Any

    @property
    def _parameter_names(self) -> dict[Tensor, str]:
        return self._names

    def synchronize(self) -> None:
        """Nothing: it is steps that are combined, not gradients."""

    def skip_synchronize(self) -> None:
        """AssertionError: there is nothing that could be skipped."""
        raise AssertionError("skip_synchronize() is not possible with op Adasum, which combines steps, not gradients")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Nothing: all passes before step() count."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step by this rank's gradients, and by AdaSum of all ranks' steps instead."""
        above: Any = super()
        params = [p for p in self._names if p.requires_grad]
        before = [p.clone() for p in params]
        loss = above.step(closure)
        handles = []
        for p, start in zip(params, before, strict=True):
            small, ctx = self._compression.compress(p - start)
            handles.append((calls.allreduce_async_(small, name=self._names[p], op=Adasum), ctx))
        for p, start, (handle, ctx) in zip(params, before, handles, strict=True):
            p.copy_(start.add_(self._compression.decompress(calls.synchronize(handle), ctx)))
        return loss


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none, backward_passes_per_step: int = 1, op: int = Average,
    gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Any = None, sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """An optimizer of the same class, with the same parameters, options and state, that steps by all ranks' gradients.

    Each gradient is reduced as soon as backward() has made it.  step() waits for all of them.

    - `named_parameters`: `model.named_parameters()`; the names by which ranks match gradients.
    - `compression`: hvd.Compression.fp16, int8, method("topk:0.01") and so on.
    - `backward_passes_per_step`: gradients of so many passes are added up on each rank first.
    - `op`: Average, Sum, or Adasum, which combines the ranks' steps.
    - `gradient_predivide_factor`: with Average, the gradients are divided by it before they are added up, and
      multiplied by it after.
    - `groups`: a number of groups, or lists of parameters: those of a group are reduced together.
    - `sparse_as_dense`: sparse gradients are made dense to be reduced.
    - `process_set`: the ranks that take part; others step by their own gradients.

    To clip: backward(); optimizer.synchronize(); clip; with optimizer.skip_synchronize(): optimizer.step().
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ArgumentError("gradient_predivide_factor goes with op Average only")
    if backward_passes_per_step <= 0:
        raise ArgumentError("backward_passes_per_step must be 1 or more")
    if num_groups:
        warnings.warn("num_groups is Horovod's old name of groups", DeprecationWarning, stacklevel=2)
    names = gradients.names_of(optimizer, named_parameters)
    if op == Adasum and size() > 1:
        if process_set is not global_process_set:
            raise NotImplementedError("DistributedOptimizer with op Adasum takes all ranks, no process set")
        made = derived(optimizer, DistributedAdasum)
        made._names, made._compression = names, compression
        return made
    there = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    reduced = {p: name for p, name in names.items() if p in there}
    if not process_set.included() or process_set.size() == 1:
        reduced = {}
    groups = gradients.checked(num_groups if groups is None else groups)
    op = Average if op == Adasum else op
    how = compression, op, gradient_predivide_factor, groups, process_set
    averages = Averages(optimizer, reduced, *how, sparse=not sparse_as_dense)
    anywhere = averages.anywhere if sparse_as_dense else None
    made = stepping(optimizer, Distributed, averages, reduced, backward_passes_per_step, anywhere)
    made._names, made._averages = names, averages
    return made
