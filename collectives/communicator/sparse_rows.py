"""Indices and values on the wire: each value with the distance from the index before, in 2 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sparse = tuple[Array, Array]
"""(indices, values): int64, ascending, each once."""
FAR = (1 << 16) - 1
"""The longest distance.  A longer one is several: steps of this length to elements that get a zero."""


def itemsize(dtype: np.dtype[Any], codec: str | None) -> int:
    """Bytes of a value and its distance."""
    return 2 + (2 if codec else dtype.itemsize)


def packed(some: Sparse, first: int, codec: str | None) -> Array:
    """A row of bytes for each value.  No index is below `first`.

    >>> packed((np.array([5, 6]), np.array([1, 2], np.int8)), 5, None).tolist()
    [[1, 0, 1], [1, 0, 2]]
    """
    indices, values = some
    steps = np.diff(indices, prepend=first - 1)
    between = (steps - 1) // FAR
    places = np.cumsum(between + 1) - 1
    kind = np.dtype([("step", np.uint16), ("value", np.uint16 if codec else values.dtype)])
    rows = np.zeros(places[-1] + 1 if len(places) else 0, kind)
    rows["step"] = FAR
    rows["step"][places] = steps - between * FAR
    rows["value"][places] = _halved(values, codec) if codec else values
    return rows.view(np.uint8).reshape(len(rows), kind.itemsize)


def unpacked(rows: Array, dtype: np.dtype[Any], first: int, codec: str | None) -> Sparse:
    """What `packed` had; a zero may be missing."""
    kind = np.dtype([("step", np.uint16), ("value", np.uint16 if codec else dtype)])
    told = np.ascontiguousarray(rows).reshape(-1).view(kind)
    indices = np.cumsum(told["step"], dtype=np.int64) + (first - 1)
    found = _widened(told["value"], codec) if codec else told["value"]
    own = (told["step"] != FAR) | (found != 0)
    return (indices, found) if own.all() else (indices[own], found[own])


def rounded(values: Array, codec: str) -> Array:
    """float32 values rounded to `codec`, as the receiver gets them."""
    return _widened(_halved(values, codec), codec)


def _halved(values: Array, codec: str | None) -> Array:
    if codec == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    halves = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)  # to the nearest, ties to even
    return np.where(np.isnan(values), np.uint16(0x7FC0), halves)


def _widened(halves: Array, codec: str | None) -> Array:
    if codec == "fp16":
        return np.ascontiguousarray(halves).view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << 16).view(np.float32)
