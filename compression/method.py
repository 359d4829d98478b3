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

    def redealt(self, kepts: Sequence[Kept], count: int, rank: int, size: int) -> Kept:
        """What rank `rank` of `size` keeps of a vector of `count` elements, of what the ranks of another job kept.

        Nothing, unless a method says otherwise.
        """
        return {}
