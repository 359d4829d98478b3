"""Who needs which parameters in the forward pass: modules, before their `forward`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor


class Forward:
    """Calls `needed(parameters)` before a module's forward pass that uses these.

    The first passes are watched: a parameter whose own module is not called (attention uses its projection's weight so)
    is needed by the nearest module around it that is.
    """

    def __init__(
        self, model: torch.nn.Module, params: dict[Tensor, str], needed: Callable[[list[Tensor]], object]
    ) -> None:
        self._needed = needed
        self._called: set[str] = set()
        self._own: dict[str, list[Tensor]] = {}
        """By module; none before `settle`."""
        self._above: dict[Tensor, list[list[str]]] = {}
        """By parameter: for each place where it stands, the modules around it, the nearest first."""
        owner = weakref.ref(self)
        for path, module in model.named_modules():
            module.register_forward_pre_hook(_hook(owner, path))
        for path, p in model.named_parameters(remove_duplicate=False):
            if p in params:
                parts = path.split(".")[:-1]
                around = [".".join(parts[:i]) for i in range(len(parts), -1, -1)]
                self._above.setdefault(p, []).append(around)

    def before(self, path: str) -> None:
        """The module at this path begins."""
        self._called.add(path)
        if self._own.get(path):
            self._needed(self._own[path])

    def settle(self) -> None:
        """A step was watched: from now on modules wait for their own."""
        own: dict[str, list[Tensor]] = {}
        for p, places in self._above.items():
            for around in places:
                nearest = next((path for path in around if path in self._called), "")
                own.setdefault(nearest, []).append(p)
        self._own = own

    @property
    def settled(self) -> bool:
        return bool(self._own)


def _hook(owner: Any, path: str) -> Callable[[torch.nn.Module, Any], None]:
    def hook(module: torch.nn.Module, inputs: Any) -> None:
        forward = owner()
        if forward is not None:
            forward.before(path)

    return hook
