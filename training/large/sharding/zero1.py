"""Stage 1 of ZeRO, which is weight-update sharding: the optimizer's state and work are cut.

    reduce-scatter of the gradients; each rank steps its shard; allgather of the parameters

Bytes of a rank in a step: 2 (p-1)/p n, those of an allreduce.  Memory: the optimizer's vectors / p (Adam: 8 n' / p
bytes for n' floats), a copy of the shard, and one vector of n bytes while it steps.  Time of the update / p.
Source: Rajbhandari et al., SC 2020 (P_os); Xu et al., arXiv 2004.13336.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.compression.memory import namespace
from hocket.extending import in_order
from hocket.training.large.sharding.shards import Shards


class Zero1(Shards):
    """Each rank has all parameters and gradients.  `units`: what is sent together; default everything."""

    stage = 1

    @in_order("w")
    def step(self, gradients: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> float | None:
        """Average the gradients over all ranks and step; the parameters change in place.  Returns their norm, if it
        clips.  Raises ArgumentError, on all ranks, for a gradient that is missing or has another shape.

        With order="exact" all ranks may give lists: of the gradients of each of their micro-batches, over all of which
        the average is taken.  Its bits do not depend on who had which.
        """
        several = not isinstance(gradients, Mapping)
        every: list[Mapping[str, Any]] = [*gradients] if several else [gradients]  # type: ignore[list-item]
        wrong = next(filter(None, (self._wrong(each, [*self.of]) for each in every)), "")
        if several and (self.order != "exact" or not every):
            wrong = "lists of gradients go with order='exact', and have one or more"
        self._tell(wrong)
        for unit in self.units:
            rows = [self._read(unit.names, each) for each in every]
            self._averaged(unit, namespace(rows[0]).stack(rows) if several else rows[0])
        length = self._update()
        self._spread()
        return length
