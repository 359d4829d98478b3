"""Arrays by name as bytes: on the wire, and in snapshots."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np

from hocket.training.flat import Array

BYTE = np.dtype(np.uint8)
PACKED = tuple(np.dtype(each).str for each in ("float32", "float64", "int64"))
"""Dtypes of what tables have."""
LONGEST = 1 << 40
"""Elements of an axis, at most."""
ALL = 1 << 16
"""In the place of a codec's number: all that there is of an item, its values and what the optimizer keeps."""


def as_bytes(array: Array) -> Array:
    return (array if array.ndim == 1 else array.reshape(-1)).view(BYTE)


def packed(arrays: Mapping[str, Array]) -> Array:
    """Arrays by name as bytes: the length of a JSON text, the text, and the arrays."""
    head = json.dumps([[name, each.dtype.str, each.shape] for name, each in arrays.items()]).encode()
    parts = [np.frombuffer(len(head).to_bytes(8, "little") + head, np.uint8)]
    return np.concatenate(parts + [as_bytes(np.ascontiguousarray(each)) for each in arrays.values()])


def unpacked(payload: Array | None) -> dict[str, Array]:
    """The arrays that `packed` was given, in memory of their own.  ValueError: they are something else."""
    if payload is None or payload.size < 8:
        raise ValueError("arrays are cut short")
    at = 8 + int.from_bytes(payload[:8].tobytes(), "little")
    arrays = {}
    for name, dtype, shape in json.loads(payload[8:at].tobytes()):
        if dtype not in PACKED or not all(type(n) is int and 0 <= n <= LONGEST for n in shape):
            raise ValueError(f"an array of {str(dtype)[:20]} and shape {str(shape)[:80]}")
        end = at + math.prod(shape) * np.dtype(dtype).itemsize
        if end > payload.size:
            raise ValueError("arrays are cut short")
        arrays[name] = np.frombuffer(payload[at:end].tobytes(), dtype).reshape(shape)
        at = end
    return arrays
