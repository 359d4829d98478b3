"""The result of every collective, in NumPy: which ranks' elements come where, and what their reduction is.

A reduction is told twice: `fold`, strictly from rank 0 on, whose bits an algorithm of one reduction must have; and
`reduced`, with the bound that rounding explains, whatever the order.  k roundings of relative error u give at most
((1 + u)^k - 1) times the sum (for a product: the product) of the absolute values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from hocket.kernels.dtypes import DTYPES, DType

try:
    import ml_dtypes
except ImportError:  # then there are none of its own
    ml_dtypes = None  # type: ignore[assignment, unused-ignore]

Array = np.ndarray[Any, Any]
Function = Callable[[Array, Array], Array]
SMALL = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Floats that are added up in float32, and rounded once."""
ROWS = [row for row in DTYPES if row.kind != "opaque"]
"""The dtypes that can be reduced."""
UFUNCS: dict[str, Function] = {
    "sum": np.add, "avg": np.add, "premul_sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    "land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor,
}  # fmt: skip
"""Ops of numbers and bools."""


def numpy_dtype(row: DType) -> np.dtype[Any] | None:
    """The NumPy dtype of a row, None where this machine has no library for it."""
    if row.kind == "pair":
        value, index = row.name.split("_")
        return np.dtype([("value", value), ("index", index)])
    if hasattr(np, row.numpy):
        return np.dtype(row.numpy)
    return np.dtype(getattr(ml_dtypes, row.numpy)) if hasattr(ml_dtypes, row.numpy) else None


def kind_of(dtype: np.dtype[Any]) -> str:
    """bool, int, uint, float or complex; "": no number."""
    return "float" if dtype.name in SMALL else {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}.get(
        dtype.kind, "")  # fmt: skip


# --- which elements


class ResultPart(NamedTuple):
    """`length` elements of a result from `at` on are the reduction of these ranks' elements from `source` on."""

    at: int
    length: int
    ranks: Sequence[int]
    source: int


def pieces(collective: str, size: int, rank: int, root: int, lengths: Any) -> list[ResultPart]:
    """The pieces that `rank` gets, in order; [] where it gets nothing.

    `lengths`: elements of x; where x or the result has a block for each rank, those of a block, or a sequence of them;
    of alltoall also a sequence for each rank, of what it sends to each.
    """
    everyone = range(size)
    if collective in ("allreduce", "scan", "exscan", "broadcast", "reduce"):
        ranks: Sequence[int] = {"scan": everyone[: rank + 1], "exscan": everyone[:rank], "broadcast": [root]}.get(
            collective, everyone)  # fmt: skip
        return [ResultPart(0, lengths, ranks, 0)] if ranks and (collective != "reduce" or rank == root) else []
    blocks = [lengths] * size if isinstance(lengths, int) else lengths
    if collective in ("reduce_scatter", "scatter"):
        return [ResultPart(0, blocks[rank], everyone if collective == "reduce_scatter" else [root], sum(blocks[:rank]))]
    if collective == "alltoall":
        rows = [blocks] * size if isinstance(blocks[0], int) else blocks
        return list(_after_another((row[rank], r, sum(row[:rank])) for r, row in enumerate(rows)))
    if collective == "allgather" or collective == "gather" and rank == root:
        return list(_after_another((length, r, 0) for r, length in enumerate(blocks)))
    return []


def _after_another(parts: Iterator[tuple[int, int, int]]) -> Iterator[ResultPart]:
    at = 0
    for length, rank, source in parts:
        yield ResultPart(at, length, [rank], source)
        at += length


# --- reductions, bit for bit


def combine(op: str | Function, a: Array, b: Array) -> Array:
    """a op b, of arrays or of pairs {value, index}."""
    if callable(op):
        return np.asarray(op(a, b))
    if op in ("minloc", "maxloc"):
        return _located(a, b, np.less if op == "minloc" else np.greater)
    if a.dtype.kind == "c" and op == "prod":
        out = np.empty_like(a)
        out.real, out.imag = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
        return out
    if op in ("min", "max") and a.dtype.kind == "f":
        return np.where(np.isnan(b), b, np.where(b < a if op == "min" else b > a, b, a))
    return np.asarray(UFUNCS[op](a, b).astype(a.dtype))


def _located(a: Array, b: Array, better: Function) -> Array:
    """The one of equal values that has the smaller index."""
    va, vb = a["value"], b["value"]
    tie = (va == vb) | (np.isnan(va) & np.isnan(vb))
    take = better(vb, va) | (np.isnan(vb) & ~np.isnan(va)) | (tie & (b["index"] < a["index"]))
    return np.where(take, b, a)


def fold(op: str | Function, xs: Sequence[Array]) -> Array:
    """xs[0] op xs[1] op ..."""
    dtype = xs[0].dtype
    if len(xs) == 1:
        return xs[0].copy()
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float32) for x in xs] if dtype.name in SMALL and not callable(op) else list(xs)
        return np.asarray(reduce(lambda a, b: combine(op, a, b), wide)).astype(dtype)


def same(got: Array, want: Array) -> Array:
    """Which elements have the same bits; any NaN is as good as another."""
    if got.dtype.names == ("value", "index"):
        return np.asarray(same(got["value"], want["value"]) & (got["index"] == want["index"]))
    if got.dtype.kind == "c":
        parts = same(got.view(got.real.dtype), want.view(want.real.dtype))
        return np.asarray(parts.reshape(*got.shape, 2).all(axis=-1))
    bits = np.dtype(f"V{got.dtype.itemsize}")
    equal = np.asarray(np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(want).view(bits))
    if kind_of(got.dtype) == "float":
        with np.errstate(invalid="ignore"):  # ml_dtypes say that comparing a NaN is invalid
            equal = equal | ((got != got) & (want != want))
    return equal.reshape(got.shape)


# --- reductions in any order


class Expected(NamedTuple):
    """A result, and how far from it each element may lie (None: not at all)."""

    array: Array
    bound: Array | None = None


def reduced(op: str | Function, xs: Sequence[Array], factors: Sequence[float] = (), left: bool = False,
            size: int | None = None) -> Expected:  # fmt: skip
    """xs[0] op xs[1] op ..., in any order; `left`: strictly from rank 0 on, so that floats are exact too.

    `factors`: what premul_sum multiplies by.  `size`: what avg divides by, if not by how many there are.
    """
    dtype, count = xs[0].dtype, size or len(xs)
    kind = kind_of(dtype)
    if kind in ("float", "complex") and op in ("sum", "prod", "avg", "premul_sum"):
        if not (left and (op == "sum" or op == "prod" and kind == "float")):
            return _bounded(str(op), xs, factors, count)
    elif op == "premul_sum":
        xs = [(x * dtype.type(int(f))).astype(dtype) for x, f in zip(xs, factors, strict=True)]
    total = fold(op, xs)
    if op == "avg" and kind in ("int", "uint"):  # toward zero
        total = np.asarray(np.sign(total) * (np.abs(total) // dtype.type(count))).astype(dtype)
    return Expected(total)


def _bounded(op: str, xs: Sequence[Array], factors: Sequence[float], size: int) -> Expected:
    """In extended precision.  At most one rounding at each rank, and two more for a factor and its product."""
    dtype, is_complex = xs[0].dtype, xs[0].dtype.kind == "c"
    with np.errstate(all="ignore"):
        wide = np.clongdouble if is_complex else np.longdouble
        ys = [x.astype(np.complex128 if is_complex else np.float64).astype(wide) for x in xs]
        if op == "premul_sum":
            ys = [y * f for y, f in zip(ys, factors, strict=True)]
        total, scale = reduce(UFUNCS[op], ys), reduce(UFUNCS[op], [np.abs(y) for y in ys])
        if op == "avg":
            total, scale = total / size, scale / size
        info: Any = (ml_dtypes or np).finfo(dtype)  # type: ignore[no-untyped-call, unused-ignore]
        unit = float(info.eps) / 2 + (2.0**-23 if dtype.name in SMALL else 0.0)  # small floats: of float32, too
        if is_complex and op == "prod":
            unit *= 3  # (1 + sqrt 2) would do: two products and a sum, in each part
        roundings = len(xs) - 1 + (2 if op in ("avg", "premul_sum") else 0)
        # The smallest subnormal: of a product or a quotient that lies below the normal numbers.
        least = (roundings + 1) * float(info.smallest_subnormal)
        return Expected(total, np.expm1(roundings * np.log1p(np.longdouble(unit))) * scale + least)


def result(given: Sequence[ResultPart], reduction: Callable[[list[int], slice], Expected]) -> Expected | None:
    """The pieces put together, each reduced by `reduction(ranks, elements)`; None: there is none."""
    if not given:
        return None
    parts = [reduction(list(each.ranks), slice(each.source, each.source + each.length)) for each in given]
    if len(parts) == 1:
        return parts[0]
    return Expected(np.concatenate([part.array for part in parts]))


def wrong(got: Array, wanted: Expected) -> Array:
    """Which elements are not what they should be.  Zeros of either sign are alike."""
    if wanted.bound is not None:
        exact = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
        with np.errstate(invalid="ignore"):
            return np.asarray(~(np.abs(exact - wanted.array) <= wanted.bound))
    if got.tobytes() == wanted.array.tobytes():
        return np.zeros(got.shape, bool)
    found = ~same(got, wanted.array)
    if kind_of(got.dtype) in ("float", "complex"):
        with np.errstate(invalid="ignore"):
            found &= got != wanted.array
    return np.asarray(found)


def difference(got: Array, wanted: Expected) -> str:
    """Say how `got` is wrong; "": nothing."""
    if got.shape != wanted.array.shape:
        return f"its shape is {got.shape}, wanted is {wanted.array.shape}"
    if wanted.bound is None and got.dtype != wanted.array.dtype:
        return f"its dtype is {got.dtype}, wanted is {wanted.array.dtype}"
    bad = wrong(got, wanted)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(np.atleast_1d(bad))[0])
    one, other = np.atleast_1d(got)[at], np.atleast_1d(wanted.array)[at]
    more = "" if wanted.bound is None else f" within {float(np.atleast_1d(wanted.bound)[at]):.3g}"
    count = f"{int(bad.sum())} of {got.size} elements are wrong"
    return f"{count}, the first at {list(at)}: {one!r}, wanted {other!r}{more}"


# --- inputs


def samples(row: DType, count: int, rng: np.random.Generator) -> Array:
    """Values of every sort: few of them, so that ties happen; for small floats every bit pattern; any integer."""
    dtype: Any = numpy_dtype(row)
    found = few(row, count, rng)
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


def few(row: DType, count: int, rng: np.random.Generator) -> Array | None:
    """`count` pairs or bools, of few values, so that ties happen; None for other dtypes."""
    if row.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if row.kind != "pair":
        return None
    out = np.zeros(count, numpy_dtype(row))
    out["value"], out["index"] = rng.integers(-2, 3, count), rng.integers(-3, 4, count)
    if out.dtype["value"].kind == "f":
        out["value"][rng.random(count) < 0.1] = np.nan
    return out
