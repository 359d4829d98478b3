"""One step on this rank: when each gradient was there, and when each average was needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Consumer(NamedTuple):
    """A piece of the computation that needs averages."""

    needs: frozenset[int]
    """Tensors, by their places among those declared."""
    seconds: float
    """Seconds of its computation."""
    after: frozenset[int] = frozenset()
    """Other consumers, by their places, whose results it needs."""


class Recorded(NamedTuple):
    """A step: from its first gradient to the first of the next one."""

    made: list[int]
    """Tensors in the order in which they became ready."""
    consumers: list[Consumer]
    """In the order of the waits: one after the other, as far as is known here."""
    seconds: dict[int, float]
    """By tensor: how long it travelled."""


class Recording:
    """Notes of a step that is under way.  A wait ends the computation that the waits before it made possible."""

    def __init__(self) -> None:
        self._made: list[int] = []
        self._needed: list[list[int]] = []
        """Tensors that were waited for with nothing computed between."""
        self._computed: list[float] = []
        """Seconds of computation behind each but the last of these."""
        self._ended = 0.0
        self._seconds: dict[int, float] = {}

    def ready(self, tensor: int) -> None:
        """The gradient of this tensor is there.  Those of the next step are not noted."""
        if not self._needed:
            self._made.append(tensor)

    def waited(self, tensor: int, began: float, ended: float, travelled: float) -> None:
        """A wait for its average, between these times."""
        self._seconds[tensor] = travelled
        if self._needed and began - self._ended < AT_ONCE:
            self._needed[-1].append(tensor)
        else:
            self._computed += [began - self._ended] if self._needed else []
            self._needed.append([tensor])
        self._ended = ended

    def recorded(self, tensors: int) -> Recorded:
        """The recorded step; tensors that were never ready, or never needed, come last."""
        made = [*dict.fromkeys(self._made)]
        computed = [*self._computed, 0.0]
        consumers = [
            Consumer(frozenset(needs), seconds, frozenset([i - 1] if i else []))
            for i, (needs, seconds) in enumerate(zip(self._needed, computed, strict=False))
        ]
        return Recorded([*made, *missing(made, tensors)], consumers, self._seconds)


AT_ONCE = 20e-6
"""Seconds between two waits in which nothing is computed."""


def missing(given: Sequence[int], count: int) -> list[int]:
    """The others of `count`, in their order."""
    return sorted({*range(count)} - {*given})
