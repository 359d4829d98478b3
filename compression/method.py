"""What a method of compression is: how ranks average a vector with fewer bits.  compressor.py keeps its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Kept = dict[str, Array]
"""What a method keeps of a vector from one call to the next, by name."""


class Averaged(NamedTuple):
    """What a method made of a vector."""

    result: Array
    """The average of all ranks' vectors, as far as it came; the same bits on all ranks."""
    sent: Array
    """What the others got of this rank's vector.  Where all send the same (PowerSGD), that is the result."""
    kept: Kept
    nbytes: int
    """What a vector is on the wire."""


class Method(Protocol):
    """One way to average.  It has no state of its own: that of each vector is handed to it, and handed back."""

    @property
    def name(self) -> str:
        """As `Compressor` takes it: "topk:0.01"."""

    def average(self, comm: Any, vector: Array, kept: Kept, seed: int) -> Averaged:
        """Collective.  `vector`: float32 of any shape, not changed; `kept`: empty in the first call.  `seed`: of this
        vector and call, the same on all ranks."""

    def average_all(
        self, comm: Any, vectors: Sequence[Array], kepts: Sequence[Kept], seeds: Sequence[int]
    ) -> list[Averaged]:
        """`average` of several vectors; methods that can, make fewer calls for them together."""
        return [self.average(comm, *each) for each in zip(vectors, kepts, seeds, strict=True)]

    def redealt(self, kepts: Sequence[Kept], count: int, rank: int, size: int) -> Kept:
        """What rank `rank` of `size` keeps of a vector of `count` elements, of what the ranks of another job kept.

        Nothing, unless a method says otherwise.
        """
        return {}


def joined(vectors: Sequence[Array]) -> Array:
    """All of them, one after the other, in one dimension."""
    return np.concatenate([vector.reshape(-1) for vector in vectors])


def parted(whole: Array, vectors: Sequence[Array]) -> list[Array]:
    """The parts of `whole` in the shapes of those that it was joined of."""
    ends = np.cumsum([vector.size for vector in vectors])
    return [part.reshape(vector.shape) for part, vector in zip(np.split(whole, ends[:-1]), vectors, strict=True)]
