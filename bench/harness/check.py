"""Is a result right?  Every rank knows every rank's input, so it works out its own result with NumPy and counts
the elements that differ.

Floats are combined in float64 (complex in complex128) and may differ by the rounding of the dtype; integers, bool,
minima, maxima and moved data must be equal.  Knows nothing of who computed the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy

from hocket.collectives.choice.cases import Case, numpy_dtype

Array = numpy.ndarray[Any, Any]
SLICE = 1 << 18  # elements looked at together: the memory of a check does not grow with the vector

FOLDS: dict[str, numpy.ufunc] = {
    "sum": numpy.add, "avg": numpy.add, "prod": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum,
    "band": numpy.bitwise_and, "bor": numpy.bitwise_or, "bxor": numpy.bitwise_xor,
    "land": numpy.logical_and, "lor": numpy.logical_or, "lxor": numpy.logical_xor,
}  # fmt: skip


def pattern(rank: int, start: int, stop: int, dtype: str) -> Array:
    """Elements start..stop of what `rank` gives: cheap, different everywhere, and small enough for every dtype.

    The top bits of a product have no short period: a piece moved by a power of two does not look right.
    """
    at = numpy.arange(start, stop, dtype=numpy.uint64) + numpy.uint64((rank << 40) + 1)
    noise = at * numpy.uint64(0x9E3779B97F4A7C15) >> numpy.uint64(58)
    kind = numpy_dtype(dtype)
    if kind.kind == "b":
        return (noise & numpy.uint64(1)).astype(kind)
    if kind.kind in "iu":
        return (noise + numpy.uint64(1)).astype(kind)
    values = 0.5 + noise.astype(numpy.float64) / 64
    return (values + 1j * (1 - values)).astype(kind) if kind.kind == "c" else values.astype(kind)


EPSILONS = {"bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}
"""Of the dtypes that NumPy does not have."""


class Piece(NamedTuple):
    """`length` elements of the result from `at` on are the combination of these ranks' elements from `source` on."""

    at: int
    length: int
    ranks: Sequence[int]
    source: int


def pieces(case: Case, rank: int) -> list[Piece]:
    """What the collective promises to `rank`; nothing for a rank that gets no result."""
    whole, block, everyone = case.whole, case.whole // case.size, range(case.size)
    at_root = rank == case.root
    match case.collective:
        case "allreduce":
            return [Piece(0, whole, everyone, 0)]
        case "reduce":
            return [Piece(0, whole, everyone, 0)] if at_root else []
        case "scan":
            return [Piece(0, whole, range(rank + 1), 0)]
        case "exscan":
            return [Piece(0, whole, range(rank), 0)] if rank else []
        case "reduce_scatter":
            return [Piece(0, block, everyone, rank * block)]
        case "broadcast":
            return [Piece(0, whole, [case.root], 0)]
        case "scatter":
            return [Piece(0, block, [case.root], rank * block)]
        case "alltoall":
            return [Piece(r * block, block, [r], rank * block) for r in everyone]
        case "gather" | "allgather":
            gets = at_root or case.collective == "allgather"
            return [Piece(r * block, block, [r], 0) for r in everyone] if gets else []
    return []


def wrong(case: Case, rank: int, result: Array) -> int:
    """How many elements of this rank's result are not what they should be."""
    return sum(
        _differing(case, result[at : at + length], [pattern(r, source, source + length, case.dtype) for r in ranks])
        for at, length, ranks, source in (part for piece in pieces(case, rank) for part in _slices(piece))
    )


def _slices(piece: Piece) -> Iterator[Piece]:
    for start in range(0, piece.length, SLICE):
        yield Piece(piece.at + start, min(SLICE, piece.length - start), piece.ranks, piece.source + start)


def _differing(case: Case, got: Array, inputs: Sequence[Array]) -> int:
    if len(inputs) == 1 or not case.kind.reduces:
        return int(numpy.count_nonzero(got != inputs[0]))
    kind = numpy_dtype(case.dtype)
    exact = kind.kind in "biu"
    wide = kind if exact else numpy.dtype(numpy.complex128 if kind.kind == "c" else numpy.float64)
    operands = [x.astype(wide) for x in inputs]
    want = operands[0]
    for x in operands[1:]:
        want = FOLDS[case.op](want, x).astype(wide)
    if case.op == "avg":
        want = want.astype(numpy.float64) / len(inputs) if exact else want / len(inputs)
        if exact:  # an integer average may be rounded either way
            return int(numpy.count_nonzero(numpy.abs(got.astype(numpy.float64) - want) >= 1))
    if exact or case.op not in ("sum", "prod", "avg"):
        return int(numpy.count_nonzero(got.astype(wide) != want))
    return _beyond(got.astype(wide), want, (len(inputs) + 1) * _epsilon(case.dtype))


def _beyond(got: Array, want: Array, relative: float) -> int:
    """Elements further off than `relative`; NaN is never near."""
    return int(numpy.count_nonzero(~(numpy.abs(got - want) <= relative * numpy.abs(want))))


def _epsilon(dtype: str) -> float:
    """From 1 to the next number."""
    return EPSILONS.get(dtype) or float(numpy.finfo(numpy_dtype(dtype)).eps)
