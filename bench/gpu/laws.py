"""What a kernel must give, in NumPy; the inputs that show it; and when two results are the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.conformance.oracle import numpy_dtype
from hocket.errors import Error
from hocket.kernels.dtypes import DTYPES, DType, by_name

Array = np.ndarray[Any, Any]
SMALL = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def dtype_of(row: DType) -> np.dtype[Any]:
    dtype = numpy_dtype(row)
    if dtype is None:
        raise Error(f"{row.name} needs ml_dtypes, which is not installed")
    return dtype


def same(row: DType, got: Array, want: Array) -> Array:
    """Which elements have the same bits; any NaN is as good as another."""
    if row.kind == "pair":
        value = same(by_name(got["value"].dtype.name), got["value"], want["value"])
        return np.asarray(value & (got["index"] == want["index"]))
    if row.kind == "complex":
        parts = same(DTYPES[0], got.view(got.real.dtype), want.view(want.real.dtype)).reshape(-1, 2)
        return np.asarray(parts.all(axis=1))
    bits = f"u{got.dtype.itemsize}"
    with np.errstate(invalid="ignore"):
        nan = (got != got) & (want != want)
    return np.asarray((np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(want).view(bits)) | nan)


def few(row: DType, count: int, dtype: np.dtype[Any], rng: np.random.Generator) -> Array | None:
    """`count` pairs or bools, of few values, so that ties happen; None for other dtypes."""
    if row.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if row.kind != "pair":
        return None
    out = np.zeros(count, dtype)
    out["value"], out["index"] = rng.integers(-2, 3, count), rng.integers(-3, 4, count)
    if dtype["value"].kind == "f":
        out["value"][rng.random(count) < 0.1] = np.nan
    return out


def samples(row: DType, count: int, rng: np.random.Generator) -> Array:
    """Random bits; half of the floats are of like size; pairs and bools have few values."""
    dtype = dtype_of(row)
    found = few(row, count, dtype, rng)
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
