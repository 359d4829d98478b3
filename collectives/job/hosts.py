"""Which ranks are on one host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_Together = Callable[[int, int], bool]


def machine(said: dict[str, Any], near: bool) -> tuple[str, ...]:
    """What tells machines apart: containers of one kernel have node names of their own.

    `near`: memory was tried.  Then ranks that have no folder in common are apart unless it is proven that they are not:
    containers may have one node name, and each devices of its own.
    """
    return said["kernel"], said["node"], said["folder"] if near else ""


def sharing(size: int, together: _Together) -> tuple[tuple[int, ...], ...]:
    """Ranks grouped so that in a group each is together with each, asked both ways."""
    groups: list[list[int]] = []
    for r in range(size):
        home = next((g for g in groups if all(together(a, r) and together(r, a) for a in g)), None)
        if home is None:
            groups.append([r])
        else:
            home.append(r)
    return tuple(tuple(g) for g in groups)


def hosts(size: int, together: _Together) -> tuple[tuple[int, ...], ...]:
    """Ranks grouped so that two that are together, asked both ways, are in one group: through a third one, too."""
    groups: list[list[int]] = []
    for r in range(size):
        joined = [g for g in groups if any(together(a, r) and together(r, a) for a in g)]
        groups = [g for g in groups if g not in joined] + [[*(a for g in joined for a in g), r]]
    return tuple(sorted(tuple(sorted(g)) for g in groups))
