"""What a reduction must give, in NumPy: left to right, small floats in fp32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from hocket.bench.gpu.laws import few
from hocket.kernels.dtypes import DTYPES, DType

Array = np.ndarray[Any, Any]
SMALL = {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"}


def numpy_dtype(row: DType) -> np.dtype[Any]:
    if row.kind == "pair":
        value, index = row.name.split("_")
        return np.dtype([("value", value), ("index", index)])
    scalar: type = getattr(np, row.numpy, None) or getattr(ml_dtypes, row.numpy)
    return np.dtype(scalar)


ROWS = [row for row in DTYPES if row.kind != "opaque"]


def samples(row: DType, count: int, rng: np.random.Generator) -> Array:
    """Values of every sort: few of them, so that ties happen; for small floats every bit pattern; any integer."""
    dtype = numpy_dtype(row)
    found = few(row, count, dtype, rng)
    if found is not None:
        return found
    if row.kind in ("int", "uint") or row.name in SMALL:
        bits = rng.integers(0, 256, count * row.itemsize, dtype=np.uint8).view(dtype)
        return np.where(rng.random(count) < 0.2, np.zeros(1, dtype), bits)
    parts = count * (2 if row.kind == "complex" else 1)
    scale = np.float64(2.0) ** rng.integers(-40, 40, parts)
    special = rng.choice([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 1e-310, 1e-40, 3e38], parts)
    values = np.where(rng.random(parts) < 0.2, special, rng.standard_normal(parts) * scale)
    return values.astype("f4" if row.itemsize == 4 or row.name == "complex64" else "f8").view(dtype)


def expected(row: DType, inputs: Sequence[Array], op: str) -> Array:
    """inputs[0] op inputs[1] op ..."""
    dtype = inputs[0].dtype
    if len(inputs) == 1:
        return inputs[0].copy()
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float32) for x in inputs] if row.name in SMALL else list(inputs)
        return np.asarray(reduce(lambda a, b: combine(row, op, a, b), wide)).astype(dtype)


def combine(row: DType, op: str, a: Array, b: Array) -> Array:
    if row.kind == "pair":
        return locate(a, b, np.less if op == "minloc" else np.greater)
    if row.kind == "complex" and op == "prod":
        out = np.empty_like(a)
        out.real, out.imag = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
        return out
    if op == "min":
        return np.where(np.isnan(b), b, np.where(b < a, b, a)) if a.dtype.kind == "f" else np.minimum(a, b)
    if op == "max":
        return np.where(np.isnan(b), b, np.where(b > a, b, a)) if a.dtype.kind == "f" else np.maximum(a, b)
    function: Callable[[Array, Array], Array] = {
        "sum": np.add,
        "prod": np.multiply,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
        "land": np.logical_and,
        "lor": np.logical_or,
        "lxor": np.logical_xor,
    }[op]
    return function(a, b).astype(a.dtype)


def locate(a: Array, b: Array, better: Callable[[Array, Array], Array]) -> Array:
    va, vb = a["value"], b["value"]
    tie = (va == vb) | (np.isnan(va) & np.isnan(vb))
    take = better(vb, va) | (np.isnan(vb) & ~np.isnan(va)) | (tie & (b["index"] < a["index"]))
    return np.where(take, b, a)


def same(row: DType, got: Array, want: Array) -> Array:
    """Which elements have the same bits, any NaN being as good as another."""
    if row.kind == "pair":
        same_value = bits(got["value"]) == bits(want["value"])
        either = same_value | (np.isnan(got["value"]) & np.isnan(want["value"]))
        return np.asarray(either & (got["index"] == want["index"]))
    if row.kind == "complex":
        got, want = got.view(got.real.dtype), want.view(want.real.dtype)
    return np.asarray((bits(got) == bits(want)) | (is_nan(got) & is_nan(want)))


def is_nan(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # ml_dtypes say that comparing a NaN is invalid
        return np.asarray(x != x)


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
