"""The learning rates that gradients will be multiplied by, read from the optimizer while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hocket.errors import ArgumentError


class Rates:
    """`lr`: an optimizer, whose groups' "lr" are read; a function without arguments that returns a rate; or None."""

    def __init__(self, lr: Any) -> None:
        if lr is not None and not hasattr(lr, "param_groups") and not callable(lr):
            raise ArgumentError(f"lr={lr!r} must be the optimizer, or a function that returns the learning rate")
        self._lr = lr

    def of(self, parameters: Sequence[Any]) -> list[float | None]:
        """The rate of each; None: it is not known."""
        if not hasattr(self._lr, "param_groups"):
            rate = None if self._lr is None else float(self._lr())
            return [rate] * len(parameters)
        found = {id(p): _rate(group) for group in self._lr.param_groups for p in group["params"]}
        return [found.get(id(p)) for p in parameters]

    def one(self) -> float | None:
        """That of all parameters, where they are averaged as one."""
        if not hasattr(self._lr, "param_groups"):
            return self.of([None])[0]
        found = {_rate(group) for group in self._lr.param_groups}
        if len(found) > 1:
            raise ArgumentError(
                f"the optimizer's groups have the rates {sorted(map(str, found))}, but FSDP2 averages a module's "
                "parameters as one: give lr= a function that returns the rate"
            )
        return found.pop()


def _rate(group: dict[str, Any]) -> float | None:
    """A group's; None: its optimizer has none."""
    return None if group.get("lr") is None else float(group["lr"])
