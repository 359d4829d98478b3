"""The inputs that show what a kernel gives, and the law of a checksum."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.conformance.oracle import Array, few, numpy_dtype
from hocket.errors import Error
from hocket.kernels.dtypes import DType


def dtype_of(row: DType) -> np.dtype[Any]:
    dtype = numpy_dtype(row)
    if dtype is None:
        raise Error(f"{row.name} needs ml_dtypes, which is not installed")
    return dtype


def samples(row: DType, count: int, rng: np.random.Generator) -> Array:
    """Random bits; half of the floats are of like size; pairs and bools have few values."""
    dtype = dtype_of(row)
    found = few(row, count, rng)
    if found is not None:
        return found
    bits = rng.integers(0, 256, count * row.itemsize, dtype=np.uint8).view(dtype)
    if row.kind not in ("float", "complex"):
        return bits
    with np.errstate(all="ignore"):
        return np.where(rng.random(count) < 0.5, rng.standard_normal(count).astype(dtype), bits)


def checksum(data: bytes) -> int:
    """The law of checksum.cuh."""
    mask, total = 2**64 - 1, 0
    for i in range(0, len(data), 8):
        x = int.from_bytes(data[i : i + 8], "little") + (i // 8 + 1) * 0x9E3779B97F4A7C15 & mask
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        total += x ^ x >> 31
    return total & mask
