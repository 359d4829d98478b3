"""Stage 2 of ZeRO: gradients are cut, too: each goes as soon as the backward pass has made it, and a shard stays.

Bytes of a rank in a step: 2 (p-1)/p n.  Memory: as stage 1, but of the gradients only the shard, n/p, and the units
that are on their way.  Units are sent from the last to the first, whatever the order in which `add` gets them: all
ranks issue them in that order.  Source: Rajbhandari et al., SC 2020 (P_os+g).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.errors import ArgumentError
from hocket.extending import in_order
from hocket.training.large.sharding.cutting import bucketed, checked
from hocket.training.large.sharding.shards import Shards

BUCKET = 4 << 20
"""Bytes of a unit, if the user names none."""


class Zero2(Shards):
    """Gradients come one by one.  `units`: lists of names that are sent together; default neighbours, 4 MiB."""

    stage = 2

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._came: dict[str, Any] = {}
        """Gradients of units that are not complete, or not due."""
        self._left = [*self.units]
        """Units to be sent, the next one last."""
        self._works: list[Any] = []

    def _groups(self, units: Sequence[Sequence[str]] | None) -> list[list[str]]:
        return bucketed(self.flat, BUCKET) if units is None else checked(self.flat, units)

    @in_order("w")
    def add(self, name: str, gradient: Any) -> None:
        """A gradient of this step is there: in any order.  It may be changed once its unit was sent."""
        if wrong := self._odd(name, gradient) if gradient is not None or name not in self.of else "":
            raise ArgumentError(f"Sharded: {wrong}")
        if name in self._came or self.of[name] not in self._left:
            raise ArgumentError(f"Sharded: the gradient of {name!r} has come twice in step {self.steps + 1}")
        self._add(name, gradient)

    def _add(self, name: str, gradient: Any) -> None:
        self._came[name] = gradient
        while self._left and all(name in self._came for name in self._left[-1].names):
            unit = self._left.pop()
            whole = self._read(unit.names, self._came)
            self._works.append((self._averaged(unit, whole, async_op=True), whole))
            for each in unit.names:
                del self._came[each]

    @in_order("w")
    def step(self, gradients: Mapping[str, Any] | None = None) -> float | None:
        """When all gradients have come, or with those that have not: step.  Returns their norm, if it clips.

        Raises ArgumentError, on all ranks, where one is missing or wrong: then the step's gradients are forgotten.
        """
        left = [name for unit in self._left for name in unit.names if name not in self._came]
        wrong = self._wrong(gradients or {}, left)
        for name in reversed(left):
            self._add(name, None if wrong or gradients is None else gradients[name])
        for work, _ in self._works:
            work.wait()
        self._works, self._left = [], [*self.units]
        self._tell(wrong)
        length = self._update()
        self._spread()
        return length
