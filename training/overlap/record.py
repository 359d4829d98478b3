"""One step on this rank: when each gradient was there, and when each average was needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Recorded(NamedTuple):
    """A step: from its first gradient to the first of the next one."""

    made: list[int]
    """Tensors in the order in which they became ready."""
    needed: list[list[int]]
    """Tensors that were waited for with nothing computed between, in the order of the waits."""


class Recording:
    """Notes of a step that is under way.  A wait ends the computation that the waits before it made possible."""

    def __init__(self) -> None:
        self._made: list[int] = []
        self._needed: list[list[int]] = []
        self._ended = 0.0

    def ready(self, tensor: int) -> None:
        """The gradient of this tensor is there.  Those of the next step are not noted."""
        if not self._needed:
            self._made.append(tensor)

    def waited(self, tensor: int, began: float, ended: float) -> None:
        """Note that the program waited for the average of a tensor, from `began` to `ended` (seconds)."""
        if self._needed and began - self._ended < AT_ONCE:
            self._needed[-1].append(tensor)
        else:
            self._needed.append([tensor])
        self._ended = ended

    def recorded(self, tensors: int) -> Recorded:
        """The recorded step; tensors that were never ready come last."""
        made = [*dict.fromkeys(self._made)]
        return Recorded([*made, *missing(made, tensors)], self._needed)


AT_ONCE = 20e-6
"""Seconds between two waits in which nothing is computed."""


def missing(given: Sequence[int], count: int) -> list[int]:
    """The others of `count`, in their order."""
    return sorted({*range(count)} - {*given})
