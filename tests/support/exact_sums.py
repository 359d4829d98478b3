"""Sums as fractions, rounded once, which order="exact" must give; and addends that are hard to add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
FORMATS = {
    "float16": (11, -24, 16), "bfloat16": (8, -133, 128), "float32": (24, -149, 128), "float64": (53, -1074, 1024)
}  # fmt: skip
"""Bits of precision, the exponent of the smallest subnormal, and of the first power of two that is too large."""
DTYPES: dict[str, Any] = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
    "complex64": np.complex64, "complex128": np.complex128,
}  # fmt: skip
PARTS = {"complex64": "float32", "complex128": "float64"}
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
KINDS = ("normal", "bits", "wide", "ties", "zeros", "special", "largest", "subnormal", "cancelling")


def reals(x: Array) -> Array:
    """The floats of an array, complex ones as two."""
    name = PARTS.get(x.dtype.name)
    return x.view(name).reshape(-1) if name else x.reshape(-1)


def bits(x: Array) -> list[int]:
    floats = reals(np.ascontiguousarray(x))
    found: list[int] = floats.view(UNSIGNED[floats.itemsize]).tolist()
    return found


def addends(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], kind: str) -> Array:
    """Random addends, of a kind that rounds in its own way."""
    if dtype in PARTS:
        parts = addends(rng, PARTS[dtype], (*shape[:-1], 2 * shape[-1]), kind)
        return parts.view(dtype)
    precision, least, beyond = FORMATS[dtype]
    form = DTYPES[dtype]
    with np.errstate(all="ignore"):
        if kind == "normal":
            return rng.normal(size=shape).astype(form)
        if kind == "bits":
            x = rng.integers(0, 1 << 8 * np.dtype(form).itemsize, shape, np.uint64)
            x = x.astype(UNSIGNED[np.dtype(form).itemsize]).view(form)
            return np.where(np.isfinite(x.astype(np.float64)), x, form(1)).astype(form)
        if kind == "wide":
            exponents = rng.integers(least, beyond, shape)
            return np.ldexp(rng.choice([-1, 1], shape) * (1 + rng.integers(0, 4, shape) / 4), exponents).astype(form)
        if kind == "ties":
            exponents = rng.choice([-precision, 0, 1], shape)
            return np.ldexp(rng.integers(-8, 9, shape).astype(float), exponents).astype(form)
        if kind == "zeros":
            return rng.choice([0.0, -0.0, -0.0, -0.0], shape).astype(form)
        if kind == "special":
            return rng.choice([0.0, -0.0, 1.0, np.inf, np.inf, -np.inf, np.nan], shape).astype(form)
        if kind == "largest":
            most = math.ldexp((1 << precision) - 1, beyond - precision)
            return (rng.choice([-1, 1], shape) * rng.choice([most, most / 2], shape)).astype(form)
        if kind == "subnormal":
            return (rng.integers(-5, 6, shape) * 2.0**least).astype(form)
        x = addends(rng, dtype, shape, "wide").reshape(-1)
        half = x.size // 2
        x[half : 2 * half] = -x[:half]
        return rng.permutation(x).reshape(shape)


TERMS = 12


def edges(rng: np.random.Generator, dtype: str, n: int) -> Array:
    """TERMS addends of each of n elements, whose sum, or average, is near the middle of two floats.

    What decides lies up to 300 bits below: a second rounding, a lost bit or a wrong sign shows.  Large addends cancel.
    """
    precision, least, beyond = FORMATS[dtype]
    x = np.zeros((TERMS, n), DTYPES[dtype])
    largest = beyond - precision - 8
    for i in range(n):
        divisor = int(rng.choice([0, 1, 1, 1, TERMS, TERMS, TERMS]))  # 0: all cancel
        unit = min(largest, int(rng.choice([least, least + rng.integers(5), least + rng.integers(130), 0, largest])))
        m = int(rng.integers(1 << precision - 1, 1 << precision) if rng.random() < 0.7 else rng.integers(9))
        m = -m if rng.random() < 0.5 else m
        sign = rng.choice([-1.0, 1.0], 2)
        near, far = (max(least, unit - int(rng.integers(20, most))) for most in (60, rng.choice([60, 300])))
        row = [math.ldexp(m * (divisor & 1 << bit), unit) for bit in range(4)] + [math.ldexp(divisor, unit - 1)]
        row += [math.ldexp(sign[0], near), -math.ldexp(sign[0], near), math.ldexp(sign[1], far) * (divisor > 0)]
        for top in rng.integers(unit, beyond if rng.random() < 0.5 else unit + 8, 2).tolist():
            if rng.random() < 0.5:  # the highest bit of a word of wide numbers
                top = min(beyond - 1, top + (63 - (top - (-149 if dtype == "bfloat16" else least))) % 64)
            row += [math.ldexp(1.0, top), -math.ldexp(1.0, top)]
        with np.errstate(all="ignore"):
            x[:, i] = rng.permutation(np.array(row).astype(x.dtype))
    return x


def rounded(value: Fraction, dtype: str) -> float:
    """To nearest, ties to even; zero is positive."""
    precision, least, beyond = FORMATS[dtype]
    if value == 0:
        return 0.0
    size = abs(value)
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top -= Fraction(2) ** top > size
    unit = Fraction(2) ** max(top - precision + 1, least)
    number = round(size / unit) * unit  # Python rounds ties to even
    result = math.inf if number >= Fraction(2) ** beyond else float(number)
    return -result if value < 0 else result


def exact(terms: Sequence[float], dtype: str, divisor: int = 1, factors: Sequence[float] | None = None) -> float:
    """sum(terms * factors) / divisor, as IEEE 754 would have the exact one."""
    factors = [1.0] * len(terms) if factors is None else factors
    products = [x * f for x, f in zip(terms, factors, strict=True) if not (math.isfinite(x) and math.isfinite(f))]
    if products:
        return math.fsum(products) if len({*products} & {math.inf, -math.inf}) < 2 else math.nan
    signs = [math.copysign(1, x) * math.copysign(1, f) for x, f in zip(terms, factors, strict=True)]
    value = sum((Fraction(x) * Fraction(f) for x, f in zip(terms, factors, strict=True)), Fraction(0)) / divisor
    zeros = all(x == 0 or f == 0 for x, f in zip(terms, factors, strict=True))
    if value == 0:
        return -0.0 if zeros and max(signs) < 0 else 0.0
    return rounded(value, dtype)


def expected(rows: Array, dtype: str, divisor: int = 1, factors: Sequence[float] | None = None) -> list[int]:
    """The bits of each element of the sum of all rows (addends, elements)."""
    real = PARTS.get(dtype, dtype)
    values = np.stack([reals(np.ascontiguousarray(row)).astype(np.float64) for row in rows])
    sums = [exact(values[:, i].tolist(), real, divisor, factors) for i in range(values.shape[1])]
    with np.errstate(all="ignore"):
        form = np.array(sums).astype(DTYPES[real])
    form[np.isnan(sums)] = np.abs(np.array(np.nan, form.dtype))
    return bits(form)
