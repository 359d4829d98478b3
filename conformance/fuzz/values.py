"""What goes into the calls of a random program, and what NumPy says must come out of its reductions.

Every array is a function of the seed, the place in the program and the rank, so that each rank can make all ranks'.
What does not round is exact.  What rounds is compared with extended precision, within a bound: k roundings of relative
error u give at most ((1 + u)^k - 1) times the sum (for a product: the product) of the absolute values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any, NamedTuple

import numpy as np

from hocket.compression import QSGD, Int, Int4, Int8, Natural, OneBit, TernGrad
from hocket.conformance.oracle import numpy_dtype
from hocket.kernels.codecs import Codec
from hocket.kernels.dtypes import DTYPES
from hocket.kernels.ops import OPS

try:
    from ml_dtypes import finfo
except ImportError:  # then there are no dtypes of its own either
    from numpy import finfo  # type: ignore[assignment, unused-ignore]

Array = np.ndarray[Any, Any]
Function = Callable[[Array, Array], Array]

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
"""What is moved only; functions reduce `affine`, which stands for x -> m x + c."""
ALL = {**DT, **OPAQUE}
SMALL = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Floats that are added up in float32."""


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
"""What float32 is sent as; and the largest error of one encoding, as a part of the vector's largest magnitude."""


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


class Wanted(NamedTuple):
    """A result, and how far from it each element may lie (None: not at all)."""

    array: Array
    bound: Array | None = None

    def part(self, where: slice) -> Wanted:
        return Wanted(self.array[where], None if self.bound is None else self.bound[where])


def reduced(xs: Sequence[Array], dtype: str, op: str, factors: Sequence[float], left: bool, size: int) -> Wanted:
    """x0 op x1 op ...; `left`: strictly from rank 0 on, small floats rounded once, so that floats are exact too.

    `size`: what avg divides by.
    """
    kind, dt = KIND.get(dtype, "opaque"), ALL[dtype]
    with np.errstate(all="ignore"):
        if kind in ("float", "complex") and op in ("sum", "prod", "avg", "premul_sum"):
            if left and (op == "sum" or op == "prod" and kind == "float"):
                wide = [x.astype(np.float32) for x in xs] if dtype in SMALL else xs
                return Wanted(fold(np.add if op == "sum" else np.multiply, wide).astype(dt))
            return _rounded(xs, dtype, op, factors, size)
        if op == "premul_sum":
            xs = [(x * dt.type(int(f))).astype(dt) for x, f in zip(xs, factors, strict=True)]
        if op == "avg":
            total = fold(np.add, xs)
            return Wanted((total // dt.type(size) if kind == "uint" else _toward_zero(total, size)).astype(dt))
        if kind == "float" and op in ("min", "max"):
            xs = [x.astype(np.float64) for x in xs]
        return Wanted(fold(_law(op, kind), xs).astype(dt))


def _law(op: str, kind: str) -> Function:
    if op in FUNCTIONS:
        return FUNCTIONS[op]
    if op in ("minloc", "maxloc"):
        return lambda a, b: _locate(a, b, np.less if op == "minloc" else np.greater)
    logical: dict[str, Function] = {"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor}
    if kind == "bool":
        same = {"sum": "lor", "max": "lor", "bor": "lor", "prod": "land", "min": "land", "band": "land", "bxor": "lxor"}
        return logical[same.get(op, op)]
    arithmetic: dict[str, Function] = {
        "sum": np.add, "premul_sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }  # fmt: skip
    if op in arithmetic:
        return arithmetic[op]
    return lambda a, b: logical[op](a, b).astype(a.dtype)


def _locate(a: Array, b: Array, better: Function) -> Array:
    """Of equal values the one with the smaller index."""
    value, index = a.dtype.names or ("", "")
    take = better(b[value], a[value]) | ((b[value] == a[value]) & (b[index] < a[index]))
    return np.where(take, b, a)


def _toward_zero(total: Array, size: int) -> Array:
    """Division of signed integers."""
    return np.asarray(np.sign(total) * (np.abs(total) // total.dtype.type(size)))


def _rounded(xs: Sequence[Array], dtype: str, op: str, factors: Sequence[float], size: int) -> Wanted:
    """In extended precision.  At most one rounding at each rank, and two more for a factor and its product."""
    is_complex = KIND[dtype] == "complex"
    wide = np.clongdouble if is_complex else np.longdouble
    ys = [x.astype(np.complex128 if is_complex else np.float64).astype(wide) for x in xs]
    if op == "premul_sum":
        ys = [y * f for y, f in zip(ys, factors, strict=True)]
    total = fold(np.multiply if op == "prod" else np.add, ys)
    scale = fold(np.multiply if op == "prod" else np.add, [np.abs(y) for y in ys])
    if op == "avg":
        total, scale = total / size, scale / size
    info: Any = finfo(ALL[dtype])  # type: ignore[no-untyped-call, unused-ignore]
    unit = float(info.eps) / 2 + (2.0**-23 if dtype in SMALL else 0.0)  # small floats: of float32, too
    if is_complex and op == "prod":
        unit *= 3  # (1 + sqrt 2) would do: two products and a sum, in each part
    roundings = len(xs) - 1 + (2 if op in ("avg", "premul_sum") else 0)
    # The smallest subnormal: of a product or a quotient that lies below the normal numbers.
    least = (roundings + 1) * float(info.smallest_subnormal)
    return Wanted(total, np.expm1(roundings * np.log1p(np.longdouble(unit))) * scale + least)


def encoded(exact: Wanted, xs: Sequence[Array], codec: str) -> Wanted:
    """A result whose ranks' vectors, and whose sums on the way, were encoded: each at most once for each rank, and once
    more."""
    largest = sum(float(np.abs(x).max(initial=0)) for x in xs)
    room = np.longdouble(CODECS[codec][1] * largest + 1e-6) * (len(xs) + 1)
    return Wanted(exact.array, (0 if exact.bound is None else exact.bound) + np.full(exact.array.shape, room))


def difference(got: Array, wanted: Wanted) -> str:
    """What is wrong with `got`; "": nothing."""
    if got.shape != wanted.array.shape:
        return f"its shape is {got.shape}, wanted is {wanted.array.shape}"
    if wanted.bound is not None:
        exact = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(exact - wanted.array) <= wanted.bound)
    elif got.dtype != wanted.array.dtype:
        return f"its dtype is {got.dtype}, wanted is {wanted.array.dtype}"
    elif got.tobytes() == wanted.array.tobytes():
        return ""
    else:
        bad = ~_alike(got, wanted.array)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(np.atleast_1d(bad))[0])
    one, other = np.atleast_1d(got)[at], np.atleast_1d(wanted.array)[at]
    more = "" if wanted.bound is None else f" within {float(np.atleast_1d(wanted.bound)[at]):.3g}"
    wrong = f"{int(bad.sum())} of {got.size} elements are wrong"
    return f"{wrong}, the first at {list(at)}: {one!r}, wanted {other!r}{more}"


def _alike(got: Array, wanted: Array) -> Array:
    """Elements with the same bits, zeros of either sign, any two NaN."""
    bits = np.dtype(f"V{got.dtype.itemsize}")
    same = np.asarray(np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(wanted).view(bits))
    if got.dtype.names is None and got.dtype.kind not in "SUMm":
        with np.errstate(invalid="ignore"):
            same = same | (got == wanted) | ((got != got) & (wanted != wanted))
    return same.reshape(got.shape)
