"""Norms of the parameters of which a rank has pieces: for optimizers whose rates depend on them (training/layered.py).

Cost: one allreduce of 160 bytes for each parameter and vector (float64: 536), and one along each axis of a mesh that
cuts layers, of those that it cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.training.flat import Array, Flat
from hocket.training.large.sharding.cutting import ShardPart
from hocket.training.norm import root, squares


class Pieces:
    """`own`: this rank's pieces; `comm`: the ranks that have the others; `joined`: by axis, the layers that it cuts."""

    def __init__(self, flat: Flat, own: Sequence[ShardPart], comm: Any, joined: Sequence[tuple[Any, set[str]]]) -> None:
        self.names = [*flat.sizes]
        self.places = [(piece.name, piece.shard, len(flat.shapes[piece.name]) < 2) for piece in own]
        self._comm = comm
        at = {name: i for i, name in enumerate(self.names)}
        self._joined = [(axis, sorted(at[name] for name in names)) for axis, names in joined if names]

    def norms(self, *vectors: Array) -> list[dict[str, float]]:
        """Norms of whole parameters by name, for each vector.  Collective."""
        where = {name: shard for name, shard, _ in self.places}
        none = slice(0, 0)
        parts = [vector[where.get(name, none)] for vector in vectors for name in self.names]
        sums = squares(parts).reshape(len(vectors), len(self.names), -1)
        self._comm.allreduce(sums)
        for axis, rows in self._joined:
            some = np.ascontiguousarray(sums[:, rows])
            axis.allreduce(some)
            sums[:, rows] = some
        return [dict(zip(self.names, map(root, row), strict=True)) for row in sums]
