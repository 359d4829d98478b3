"""The inputs of a random program's calls.

Every array is a function of the seed, the place in the program and the rank, so that each rank can make all ranks'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression import QSGD, Int, Int4, Int8, Natural, OneBit, TernGrad
from hocket.conformance.oracle import SMALL, Array, Expected, Function, numpy_dtype
from hocket.kernels.codecs import Codec
from hocket.kernels.dtypes import DTYPES
from hocket.kernels.ops import OPS

AFFINE = "affine"
DT: dict[str, np.dtype[Any]] = {
    row.name: found for row in DTYPES if row.kind != "opaque" and (found := numpy_dtype(row)) is not None
}
"""Name -> NumPy's dtype, of all that can be reduced; those of ml_dtypes only where it is installed."""
KIND = {row.name: row.kind for row in DTYPES}
OPAQUE: dict[str, np.dtype[Any]] = {
    "S7": np.dtype("S7"), "U3": np.dtype("U3"), "M8[s]": np.dtype("M8[s]"), "m8[ms]": np.dtype("m8[ms]"),
    "record": np.dtype([("a", "i4"), ("b", "f8"), ("c", "S3")]), AFFINE: np.dtype([("m", "u4"), ("c", "u4")]),
}  # fmt: skip
"""Dtypes that are moved only; functions reduce `affine`, which stands for x -> m x + c."""
ALL = {**DT, **OPAQUE}


def first(a: Array, b: Array) -> Array:
    """The first that is not zero: associative, not commutative."""
    with np.errstate(invalid="ignore"):
        return np.where(a != 0, a, b).astype(a.dtype)


def larger(a: Array, b: Array) -> Array:
    """A commutative one."""
    return np.maximum(a, b)


def compose(a: Array, b: Array) -> Array:
    """a after b, of maps x -> m x + c modulo 2**32: associative, not commutative."""
    out = np.empty_like(a)
    out["m"], out["c"] = a["m"] * b["m"], a["m"] * b["c"] + a["c"]
    return out


CODECS: dict[str, tuple[str | Codec, float]] = {
    "fp16": ("fp16", 2.0**-11), "bf16": ("bf16", 2.0**-8), "int8": ("int8", 0.51 / 127), "fp8": ("fp8", 1.02 / 16),
    "int4": ("int4", 0.51 / 7), "sign": ("sign", 2.0), "Int(3)": (Int(3), 0.51 / 3), "OneBit": (OneBit(64), 2.0),
    "Int8 at random": (Int8(64, "stochastic"), 1.02 / 127), "Int4 at random": (Int4(rounding="stochastic"), 1.02 / 7),
    "QSGD": (QSGD(7), 1.02 / 7), "QSGD l2": (QSGD(3, 64, "l2"), 3.0), "TernGrad": (TernGrad(), 2.0),
    "Natural": (Natural(), 1.02),
}  # fmt: skip
"""Codecs of float32; and the largest error of one encoding, as a part of the vector's largest magnitude."""


FUNCTIONS: dict[str, Function] = {"first": first, "larger": larger, "compose": compose}
"""Ops that are functions of the user's own."""


def ops_for(dtype: str) -> list[str]:
    """The ops that a dtype can be reduced by."""
    if dtype in OPAQUE:
        return ["compose"] if dtype == AFFINE else []
    kind = KIND[dtype]
    found = [op.name for op in OPS if kind in op.kinds]
    found += ["avg", "premul_sum"] if kind in ("int", "uint", "float", "complex") else []
    found += ["first"] if kind in ("int", "uint", "float", "complex") else []
    return found + (["larger"] if kind in ("int", "uint") or dtype in ("float32", "float64") else [])


# ------------------------------------------------------------------------------------------------ inputs


def values(key: tuple[int, ...], dtype: str, count: int, op: str | None) -> Array:
    """`count` elements for `op` (None: they are only moved).  `key` are numbers that tell all arrays apart."""
    source, dt = np.random.default_rng(key), ALL[dtype]
    kind = KIND.get(dtype, "opaque")
    if kind == "bool":
        return source.integers(0, 2, count).astype(np.bool_)
    if op is None or dtype == AFFINE or (kind in ("int", "uint") and op not in ("avg", "premul_sum", "first")):
        return np.frombuffer(source.bytes(count * dt.itemsize), dt)
    if kind == "pair":
        made = np.empty(count, dt)
        made[dt.names[0]], made[dt.names[1]] = source.integers(-3, 4, count), source.integers(0, 1000, count)  # type: ignore[index]
        return made
    if op == "first" or op.startswith("l") and op != "larger":  # logical ones: zeros and others
        return (source.integers(0, 2, count) * source.integers(0, 2, count)).astype(np.float64).astype(dt)
    if kind in ("int", "uint"):  # sums of a few ranks, each three times that, still fit
        info = np.iinfo(dt)
        return source.integers(info.min // 16, info.max // 16, count, dt, endpoint=True)
    if op == "prod":
        plain = source.choice([-1.0, 1.0], count) * source.uniform(0.75, 1.4, count)
    else:
        plain = source.standard_normal(count) * (1.0 if dtype in SMALL else 10.0 ** source.integers(-3, 4, count))
    if op in ("min", "max", "larger"):
        plain = np.where(source.random(count) < 0.02, source.choice([np.nan, np.inf, -np.inf], count), plain)
    if kind == "complex":
        return np.asarray(plain + 1j * source.uniform(-1, 1, count)).astype(dt)
    return plain.astype(dt)


# ------------------------------------------------------------------------------------------------ results


def encoded(exact: Expected, xs: Sequence[Array], codec: str) -> Expected:
    """A result whose ranks' vectors, and whose sums on the way, were encoded: each at most once for each rank, and once
    more."""
    largest = sum(float(np.abs(x).max(initial=0)) for x in xs)
    room = np.longdouble(CODECS[codec][1] * largest + 1e-6) * (len(xs) + 1)
    return Expected(exact.array, (0 if exact.bound is None else exact.bound) + np.full(exact.array.shape, room))
