"""Stage 3 of ZeRO, FSDP: parameters are cut, too, and gathered unit by unit while they are used.

Bytes of a rank in a step: 3 (p-1)/p n: parameters are gathered for the forward pass, again for the backward pass, and
gradients are reduce-scattered.  Memory: all / p, the units that are in use, and the next one: while a unit is in use,
the one that came after it in the last step is gathered.
Sources: Rajbhandari et al., SC 2020 (P_os+g+p); Zhao et al., "PyTorch FSDP", VLDB 2023.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.sharding.cutting import Unit
from hocket.training.large.sharding.zero2 import Zero2


class Zero3(Zero2):
    """The parameters that it was given are read once, and forgotten: use `gathered`."""

    stage = 3

    def _begin(self) -> None:
        super()._begin()
        self.flat.forget()
        self._used: list[Unit] = []
        """Units in the order in which this step has gathered them, ..."""
        self._before: list[Unit] = []
        """... and the last one."""
        self._next: tuple[Unit, Any, Array] | None = None
        """The unit that is gathered ahead: its call, and where it comes."""

    def step(self, gradients: Mapping[str, Any] | None = None) -> float | None:
        """As stage 2's."""
        self._ahead()  # it reads the shard, which changes now
        length = super().step(gradients)
        self._before, self._used = self._used, []
        return length

    def load_state_dict(self, saved: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """As the other stages'."""
        self._ahead()
        super().load_state_dict(saved)

    @contextlib.contextmanager
    def gathered(self, *names: str) -> Iterator[dict[str, Array]]:
        """The arrays of the units in which these are, by name, for the block.  All ranks call it.

        What is written into them is lost.
        """
        unknown = [name for name in names if name not in self.of]
        if unknown:
            raise ArgumentError(f"Sharded: there is no parameter {unknown[0]!r}")
        wanted = {self.of[name].names: self.of[name] for name in names}
        yield {name: part for unit in wanted.values() for name, part in self._named(unit)}

    def _named(self, unit: Unit) -> Iterator[tuple[str, Array]]:
        ahead = self._ahead()
        whole = ahead[1] if ahead is not None and ahead[0] == unit else self._gathered(unit)
        self._used.append(unit)
        at = len(self._used)
        if at < len(self._before) and self._before[at - 1] == unit:
            following = self._before[at]
            out = np.empty(following.size, self.flat.dtype)
            self._next = following, self._gather(following, out, async_op=True), out
        return zip(unit.names, self.flat.parts(unit.names, whole), strict=True)

    def _ahead(self) -> tuple[Unit, Array] | None:
        """Wait for what is gathered ahead."""
        if self._next is None:
            return None
        (unit, work, out), self._next = self._next, None
        work.wait()
        return unit, out

    def _spread(self) -> None:
        """Nobody keeps them."""

