"""The bucket: vectors that are averaged together, one after the other in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Bucket(NamedTuple):
    """Arrays or tensors of one kind, in one memory.

    >>> import numpy as np
    >>> bucket = Bucket.of(np.arange(5), [(2,), (1, 3)], ["bias", "weight"])
    >>> [part.tolist() for part in bucket.parts], bucket.keys
    ([[0, 1], [[2, 3, 4]]], ['bias', 'weight'])
    """

    flat: Any
    """All elements, of one axis."""
    parts: list[Any]
    """Each vector in its shape, views of `flat`."""
    keys: Sequence[str] = ()
    """Their names, where they have some."""

    @classmethod
    def of(cls, flat: Any, shapes: Sequence[Sequence[int]], keys: Sequence[str] = ()) -> Bucket:
        """The parts of `flat` that have these shapes; it may be longer than they are."""
        ends = [0, *itertools.accumulate(math.prod(shape) for shape in shapes)]
        spans = zip(itertools.pairwise(ends), shapes, strict=True)
        return cls(flat[: ends[-1]], [flat[begin:end].reshape(tuple(shape)) for (begin, end), shape in spans], keys)
