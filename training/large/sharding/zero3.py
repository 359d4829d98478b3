"""Stage 3 of ZeRO, FSDP: parameters are cut, too, and gathered unit by unit while they are used.

Bytes of a rank in a step: 3 (p-1)/p n: parameters are gathered for the forward pass, again for the backward pass, and
gradients are reduce-scattered.  Memory: all / p, and the units that are in use.
Sources: Rajbhandari et al., SC 2020 (P_os+g+p); Zhao et al., "PyTorch FSDP", VLDB 2023.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
        return zip(unit.names, self.flat.parts(unit.names, self._gathered(unit)), strict=True)

    def _spread(self) -> None:
        """Nobody keeps them."""

