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

from hocket.compression.memory import chosen, copied
from hocket.errors import ArgumentError
from hocket.extending import in_order
from hocket.training.flat import Array
from hocket.training.large.sharding.cutting import Unit
from hocket.training.large.sharding.zero2 import Zero2


class Zero3(Zero2):
    """The parameters that it was given are read once, and forgotten: use `gathered`."""

    stage = 3

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.flat.forget()
        self._used: list[Unit] = []
        """Units in the order in which this step has gathered them, ..."""
        self._before: list[Unit] = []
        """... and the last one."""
        self._next: tuple[Unit, Any, Array] | None = None
        """The unit that is gathered ahead: its call, and where it comes."""
        self._open: list[Unit] = []
        """Units that are in use."""

    @in_order("w")
    def step(self, gradients: Mapping[str, Any] | None = None) -> float | None:
        """Step as stage 2 does."""
        self._ahead()  # it reads the shard, which changes now
        length = super().step(gradients)
        self._before, self._used = self._used, []
        return length

    @in_order("w")
    def load_state_dict(self, saved: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Load as the other stages do."""
        self._ahead()
        super().load_state_dict(saved)

    @contextlib.contextmanager
    def gathered(self, *names: str) -> Iterator[dict[str, Array]]:
        """The arrays of the units in which these are, by name, for the block.  All ranks call it.

        What is written into them, alike on all ranks, is kept when the block ends: loaded weights, clamped ones.
        """
        unknown = [name for name in names if name not in self.of]
        if unknown:
            raise ArgumentError(f"Sharded: there is no parameter {unknown[0]!r}")
        wanted = {self.of[name].names: self.of[name] for name in names}
        with self._calls(self.w):
            wholes = [(unit, self._use(unit)) for unit in wanted.values()]
            begun = [copied(self._mine(unit, whole)) for unit, whole in wholes]
        try:
            yield {
                name: part for unit, whole in wholes
                for name, part in zip(unit.names, self.flat.parts(unit.names, whole), strict=True)
            }  # fmt: skip
        finally:
            del self._open[len(self._open) - len(wholes) :]
        with self._calls(self.w):
            for (unit, whole), before in zip(wholes, begun, strict=True):
                now = self._mine(unit, whole)
                w = self.w[unit.shard]
                w[...] = chosen(now != before, now, w)
            self._go_ahead()

    def _use(self, unit: Unit) -> Array:
        """The parameters of a unit, whole."""
        ahead = self._ahead()
        whole = ahead[1] if ahead is not None and ahead[0] == unit else self._gathered(unit)
        self._used.append(unit)
        self._open.append(unit)
        self._go_ahead()
        return whole

    def _go_ahead(self) -> None:
        """Gather what came next in the last step, unless it is in use, and may be written into."""
        at = len(self._used)
        if self._next is None and 0 < at < len(self._before) and self._before[at - 1] == self._used[-1]:
            following = self._before[at]
            if following not in self._open:
                out = self.flat.empty(following.size)
                self._next = following, self._gather(following, out, async_op=True), out

    def _ahead(self) -> tuple[Unit, Array] | None:
        """Wait for what is gathered ahead."""
        if self._next is None:
            return None
        (unit, work, out), self._next = self._next, None
        work.wait()
        return unit, out

    def _spread(self) -> None:
        """Nobody keeps them."""

    def _take_changes(self) -> None:
        """Changes were taken when they were made, in `gathered`."""

