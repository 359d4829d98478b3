"""The learning rates that gradients will be multiplied by, read from the optimizer while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.compression.entries import Rate, rate_of
from hocket.errors import ArgumentError


class Rates:
    """`lr`: an optimizer, whose groups' "lr" are read; a function without arguments that returns a rate; or None."""

    def __init__(self, lr: Any) -> None:
        if lr is not None and not hasattr(lr, "param_groups") and not callable(lr):
            raise ArgumentError(f"lr={lr!r} must be the optimizer, or a function that returns the learning rate")
        self._lr = lr

    def read(self) -> Callable[[Any], Rate]:
        """The rates now: what returns a parameter's."""
        groups = getattr(self._lr, "param_groups", None)
        if groups is None:
            rate = self._common()
            return lambda parameter: rate
        found = {id(p): rate for group in groups for rate in [rate_of(group)] for p in group["params"]}
        return lambda parameter: found.get(id(parameter))

    def one(self) -> Rate:
        """That of all parameters, where they are averaged as one."""
        groups = getattr(self._lr, "param_groups", None)
        if groups is None:
            return self._common()
        found = {rate_of(group) for group in groups}
        if not found:
            raise ArgumentError("the optimizer has no groups of parameters yet, so no rate: add them before backward()")
        if len(found) > 1:
            raise ArgumentError(
                f"the optimizer's groups have the rates {sorted(map(str, found))}, but FSDP2 averages a module's "
                "parameters as one: give lr= a function that returns the rate"
            )
        return found.pop()

    def _common(self) -> Rate:
        return None if self._lr is None else float(self._lr())
