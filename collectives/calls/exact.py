"""order="exact": sums that are rounded once, so that their bits depend on nothing but what is added.

Where all contributions to an element meet in one reduction, they travel as they are, and it rounds their sum.
Elsewhere accumulators travel (kernels/exact/), which add without an error in any order, and who wants the sum
rounds it.  Integers are exact as they are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy

from hocket.algorithms.language.contract import CONTRACTS
from hocket.algorithms.language.registry import Algorithm
from hocket.collectives.arrays.buffers import Buffer, describe
from hocket.collectives.calls.ask import Ask
from hocket.collectives.calls.call import Call, Exact
from hocket.collectives.calls.ops import Resolved
from hocket.errors import ArgumentError
from hocket.kernels.codecs import EXACT, EXTREMES, SUMS, Codec
from hocket.kernels.dtypes import DType, by_name

BLOCK, HEAD, TERMS = 128, 12, 64
"""Accumulators of a block, the bytes of its head, and those of the terms that an accumulator has room for, at least."""
WORDS = {"float16": (2, -24), "bfloat16": (5, -149), "float32": (5, -149), "float64": (34, -1074)}
"""64-bit words of a number that holds the sum of more terms than there are, and the exponent of the last bit."""
PRODUCTS = {"float16": (10, -350), "bfloat16": (10, -350), "float32": (10, -350), "float64": (67, -2148)}
"""The same, of products with a float64 factor; other dtypes than float64 take one in the range of float32."""
FACTORS = 2.0**-149, 2.0**128
"""That range: its least, and what is too much."""
PARTS = {"complex64": "float32", "complex128": "float64"}
ADDED = (*WORDS, *PARTS)
"""Dtypes whose sums are rounded."""
USUAL = {"float64": 16, "complex128": 32, "complex64": 16}
"""Bytes of an accumulator of usual data; of other dtypes 8."""
WHOLE_SUMS = ("direct", "one_shot")
"""Algorithms whose reductions take all contributions at once."""


def of(call: Call, how: Resolved, ask: Ask, size: int) -> Call:
    """The same call with order="exact".  Raises ArgumentError where that goes with something else it asks for."""
    name = call.model.dtype.name
    if ask.codec is not None:
        raise ArgumentError(f"order='exact' and codec={str(ask.codec)!r} exclude each other; omit one of the two")
    if ask.residual is not None or ask.owner_residual is not None:
        raise ArgumentError("order='exact' loses nothing that a residual could keep: omit residual=, owner_residual=")
    if how.function is not None or how.expression is not None or how.user is not None:
        raise ArgumentError("order='exact' takes sum, avg, premul_sum, min and max; for a function use order='rank'")
    if call.model.dtype.kind not in ("float", "complex"):
        if call.exact is not None:
            raise ArgumentError(f"axis=0 adds rows of {', '.join(ADDED)}, and with op='sum' of integers, not of {name}")
        return call
    if how.name == "prod":
        raise ArgumentError("order='exact' takes no op 'prod' of floats, whose products are rounded: use order='rank'")
    if any(b is not None and (b.device >= 0 or b.foreign) for b in (call.src, call.dst)):
        raise ArgumentError("order='exact' is for arrays in host memory, and x is on a GPU: copy it to the host first")
    if how.before and name not in ("float64", "complex128") and not FACTORS[0] <= abs(how.before) < FACTORS[1]:
        raise ArgumentError(f"premul_sum({how.before!r}) is out of float32's range: with order='exact' scale x before")
    if call.exact is not None and how.name not in ("sum", "avg", "premul_sum"):
        raise ArgumentError(f"axis=0 adds rows, and op={how.name!r} does not: combine the rows of x before the call")
    if how.name in ("min", "max"):
        return dataclasses.replace(call, exact=Exact(how.name)) if name in ADDED else call
    if how.name not in ("sum", "avg", "premul_sum"):
        return call
    if name not in ADDED:
        raise ArgumentError(f"order='exact' adds {', '.join(ADDED)}, not {name}: convert x, or use order='rank'")
    asked = call.exact or Exact(how.name)
    divisor = 1 if how.name != "avg" else size if asked.rows is None else -1
    return dataclasses.replace(call, exact=asked._replace(op=how.name, divisor=divisor))


def encoded(call: Call, how: Resolved, algorithm: Algorithm, size: int) -> tuple[Call, Resolved]:
    """The call as its elements travel under this algorithm, and what is left to do to them."""
    exact, dtype = call.exact, call.model.dtype
    assert exact is not None
    if exact.op in ("min", "max"):
        levels = int(exact.op == "max")
        return dataclasses.replace(call, encoded=_plain(dtype, EXTREMES, levels=levels)), how
    meets = algorithm.name in WHOLE_SUMS and algorithm.own or size == 2
    sums = call.collective in ("allreduce", "reduce", "reduce_scatter") and size > 1
    if meets and sums and exact.rows is None and how.before is None:
        words, base = WORDS[PARTS.get(dtype.name, dtype.name)]
        codec = _plain(dtype, SUMS, words=words, base=base, divisor=exact.divisor)
        return dataclasses.replace(call, encoded=codec), how._replace(after=None)
    codec = _accumulators(dtype, exact, how.before is not None)
    return dataclasses.replace(call, encoded=codec), how._replace(after=None)


def _plain(dtype: DType, code: int, **more: Any) -> Codec:
    """Elements as they are, reduced in another way."""
    return Codec("exact", code, 1, dtype.itemsize, dtype=dtype.code, **more)


def _accumulators(dtype: DType, exact: Exact, products: bool) -> Codec:
    real = by_name(PARTS.get(dtype.name, dtype.name))
    words, base = (PRODUCTS if products else WORDS)[real.name]
    return Codec(
        "exact", EXACT, BLOCK * real.itemsize // dtype.itemsize, HEAD + BLOCK * max(TERMS, 1 + 8 * words),
        dtype=dtype.code, words=words, base=base, rows=1 if exact.rows is None else exact.rows, stride=exact.stride,
        divisor=exact.divisor,
    )  # fmt: skip


def promised(collective: str, dtype: DType, op: str, order: str) -> str:
    """Where results are the same: in each "run", wherever the "rank order" is, or always ("exact")."""
    contract = CONTRACTS[collective]
    rounds = dtype.kind in ("float", "complex") and op in ("sum", "avg", "premul_sum", "prod")
    if not contract.reduces or not rounds:
        return "exact"
    if order == "exact":
        if op == "prod" or dtype.name not in ADDED:
            raise ArgumentError(f"order='exact' does not take op={op!r} of {dtype.name}; ask about order='rank'")
        return "exact"
    return "rank order" if order == "rank" or contract.ordered else "run"


def without_whole_rows(x: Any, ask: Ask) -> tuple[Any, Ask]:
    """The same, if x's rows are floats; those of whole numbers are added here, in their dtype, which wraps."""
    if describe(x).dtype.kind not in ("int", "uint") or ask.op != "sum":
        return x, ask
    added_rows(describe(x))
    return numpy.asarray(x.sum(0, dtype=x.dtype)), ask._replace(axis=None)


def packing(call: Call) -> Codec | None:
    """The codec by which its messages are shorter than the memory that they are of."""
    return call.encoded if isinstance(call.encoded, Codec) and call.encoded.code == EXACT else None


def usual(call: Call) -> int:
    """Bytes of one block of accumulators of usual data, as it is sent."""
    return HEAD + USUAL.get(call.model.dtype.name, 8) * call.wire.block


def added_rows(x: Buffer) -> Exact:
    """x's rows of axis 0 are addends, each of x.shape[1:]."""
    if not x.shape:
        raise ArgumentError("axis=0 adds rows, and x is a scalar (shape ()); pass x.reshape(1)")
    return Exact("sum", x.shape[0], x.nbytes // max(1, x.shape[0]))
