"""Modules need their parameters in the forward pass: modules, before their `forward`."""

from __future__ import annotations

from typing import Any

import torch

from hocket.torch.training.hooks import Hook

Tensor = torch.Tensor


class Forward:
    """Lets an optimizer step a module's parameters before its forward pass, and all before a state is read or loaded.

    The first passes are watched: a parameter whose own module is not called (attention uses its projection's weight so)
    is needed by the nearest module around it that is.
    """

    def __init__(self, model: torch.nn.Module, params: dict[Tensor, str], optimizer: Any) -> None:
        self._apply = Hook(optimizer, "apply")
        self._called: set[str] = set()
        self._own: dict[str, list[Tensor]] = {}
        """By module; none before `settle`."""
        self._above: dict[Tensor, list[list[str]]] = {}
        """By parameter: for each place where it stands, the modules around it, the nearest first."""
        self._first: list[tuple[str, torch.nn.Module, Hook]] = []
        """Each module's hook, which must come before those that read its weights: old weight_norm, pruning."""
        self.handles: list[Any] = []
        for path, module in model.named_modules():
            hook = Hook(self, "before", (path,))
            self._first.append((path, module, hook))
            self.handles += [
                module.register_forward_pre_hook(hook, prepend=True),
                module.register_state_dict_pre_hook(Hook(optimizer, "finish", ())),
                module.register_load_state_dict_pre_hook(Hook(optimizer, "finish", ())),
            ]
        for path, p in model.named_parameters(remove_duplicate=False):
            if p in params:
                parts = path.split(".")[:-1]
                around = [".".join(parts[:i]) for i in range(len(parts), -1, -1)]
                self._above.setdefault(p, []).append(around)

    def before(self, path: str) -> None:
        """The module at this path begins."""
        self._called.add(path)
        if self._own.get(path):
            self._apply(self._own[path])

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

    @property
    def overtaken(self) -> str | None:
        """A module of whose hooks hocket's is not the first any more."""
        for path, module, hook in self._first:
            if next(iter(module._forward_pre_hooks.values()), None) is not hook:
                return path
        return None
