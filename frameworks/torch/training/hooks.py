"""Hooks on parameters and modules, which neither keep their owner alive nor follow copies of what they hang on."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


class Hook:
    """Calls a method of its owner, with `given` or, without it, with what torch passes, while there is an owner.

    A copy, and one that was pickled, has none: it belongs to a model that the owner does not know.
    """

    def __init__(self, owner: Any = None, method: str = "", given: tuple[Any, ...] | None = None) -> None:
        self.owner = _nobody if owner is None else weakref.ref(owner)
        self._method, self._given = method, given

    def __call__(self, *told: Any) -> None:
        owner = self.owner()
        if owner is not None:
            getattr(owner, self._method)(*(told if self._given is None else self._given))

    def __reduce__(self) -> Any:
        return Hook, ()


def _nobody() -> None:
    return None


def remove(handles: Iterable[Any]) -> None:
    """Take the hooks off that torch gave these handles for."""
    for handle in handles:
        handle.remove()


def owners(hooks: dict[int, Any] | None) -> list[Any]:
    """Whose `Hook`s are among these, and alive."""
    found = (hook.owner() for hook in (hooks or {}).values() if isinstance(hook, Hook))
    return [owner for owner in found if owner is not None]
