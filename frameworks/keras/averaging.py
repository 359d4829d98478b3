"""An optimizer that averages all ranks' gradients before it applies them.

It stays what it was, with two attributes of its own, `apply` and `stateless_apply`: a subclass would be saved under a
name that cannot be loaded.  So it has to be wrapped again after it was loaded, copied or made of a config.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import keras

from hocket import Communicator
from hocket.errors import ArgumentError
from hocket.keras import backends
from hocket.keras.compressing import Compressing
from hocket.training.flags import Flags

CALLS = ("apply", "stateless_apply")
INSIDE = (
    "a LossScaleOptimizer calls this DistributedOptimizer only on ranks whose own gradients are finite, so ranks would "
    "average different steps: pass callbacks=[hocket.keras.Average()] to fit, or call hocket.keras.distribute(model); "
    "both average before the loss scale is looked at"
)
DEPTH = 16
"""Frames between an inner optimizer's `apply` and its LossScaleOptimizer's, at most."""


class Averaging:
    """The state of an optimizer that averages: `optimizer.apply` is a method of this."""

    def __init__(self, comm: Communicator, compress: str | None = None) -> None:
        self.comm = comm
        self.compress = compress
        self.compressing = None if compress is None else Compressing(comm, compress)
        self.optimizer: Any = None
        self.inside = False
        """Are the gradients that come averaged already?  `stateless_apply` calls `apply`."""
        self._flags: tuple[Flags, list[Any], list[bool]] | None = None
        self.outermost = False
        """Was it made sure that no LossScaleOptimizer is around it?"""

    def flags(self, grads: Sequence[Any], variables: Sequence[Any]) -> Flags:
        """The flags of these gradients, made once for as long as the variables, and what is missing, stay."""
        missing = [grad is None for grad in grads]
        before, known, pattern = self._flags or (None, [], [])
        same = len(known) == len(variables) and all(a is b for a, b in zip(known, variables, strict=True))
        if before is None or not same or pattern != missing:
            before = Flags(grads, variables)
            self._flags = before, list(variables), missing
        return before

    def wrap(self, optimizer: Any) -> None:
        """Let `optimizer` average by this, and its inner optimizers no more."""
        release(optimizer)
        self.optimizer = optimizer
        for name in CALLS:
            setattr(optimizer, name, getattr(self, name))

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """The optimizer's, by the averages."""
        if not self.inside:
            variables = list(trainable_variables or self._known())
            grads = self._averages(list(grads), variables)
        return type(self.optimizer).apply(self.optimizer, grads, trainable_variables)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """The optimizer's, by the averages."""
        grads = self._averages(list(grads), self._known())
        self.inside = True
        try:
            return type(self.optimizer).stateless_apply(self.optimizer, optimizer_variables, grads, trainable_variables)
        finally:
            self.inside = False

    def rate(self) -> Any:
        """The factor of gradients in a step, as the backend's number."""
        rate = self.optimizer.learning_rate
        return rate / self.optimizer.dynamic_scale if scales(self.optimizer) else rate

    def _known(self) -> list[Any]:
        return list(getattr(self.optimizer, "_trainable_variables", ()))

    def _averages(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        if not self.outermost and _scaled(self.optimizer):
            raise ArgumentError(INSIDE)
        if not variables:  # the optimizer says what is wrong
            return grads
        found: list[Any] = backends.of_keras().averages(self, grads, variables)
        return found


def DistributedOptimizer(
    optimizer: Any, comm: Communicator | None = None, *, compress: str | None = None
) -> Any:  # a class for its users, who know it from Horovod
    """Let this optimizer of Keras 3 average all ranks' gradients before it applies them.  Returns the same object.

    `comm`: hocket's, by default that of `hocket.init`.  `compress`: a method of hocket.compression ("int8",
    "powersgd:4"), for float32 gradients on TensorFlow and torch; it keeps what it owes for each variable.

    All ranks apply the same variables in the same order, from the same values: `Broadcast` or `distribute` sees to it.
    With mixed_float16 Keras puts a LossScaleOptimizer around it: then `Average` or `distribute` move the averaging
    outside, and without them the first step raises ArgumentError.  With `gradient_accumulation_steps` each small step
    is averaged.

    Raises in a step, on all ranks, MismatchError where ranks apply other variables, or some lack a gradient; and what
    allreduce raises.
    """
    from hocket.keras.refusing import checked_comm, no_optimizer

    if why := no_optimizer(optimizer):
        raise ArgumentError(why)
    backends.of_keras().check_compress(compress)
    Averaging(checked_comm(comm), compress).wrap(optimizer)
    return optimizer


def averaging_of(optimizer: Any) -> Averaging | None:
    """The state of an optimizer that averages, or of one inside it; None: there is none."""
    found = getattr(vars(optimizer).get("apply"), "__self__", None)
    if isinstance(found, Averaging):
        return found
    inner = vars(optimizer).get("inner_optimizer")
    return None if inner is None else averaging_of(inner)


def release(optimizer: Any) -> None:
    """Let an optimizer, and those inside it, be what they were."""
    for name in CALLS:
        if isinstance(getattr(vars(optimizer).get(name), "__self__", None), Averaging):
            delattr(optimizer, name)
    if (inner := vars(optimizer).get("inner_optimizer")) is not None:
        release(inner)


def scales(optimizer: Any) -> bool:
    """Does it look for overflows, and leave steps out?"""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _scaled(optimizer: Any) -> bool:
    """Has a LossScaleOptimizer called this one?  It leaves no trace in the inner one but its frames."""
    frame = sys._getframe(1)
    for _ in range(DEPTH):
        if frame.f_back is None:
            return False
        frame = frame.f_back
        around: Any = frame.f_locals.get("self")
        if scales(around) and around.inner_optimizer is optimizer:
            return True
    return False
