"""Is a result right?  Every rank knows every rank's input, so it works out its own result with NumPy and counts
the elements that differ.

Sums and products of floats may differ by what rounding explains (hocket.conformance.oracle); all else must be equal.
Knows nothing of who computed the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from hocket.collectives.measuring.cases import Case, numpy_dtype
from hocket.conformance import oracle
from hocket.conformance.oracle import ResultPart

Array = numpy.ndarray[Any, Any]
SLICE = 1 << 18  # elements looked at together: the memory of a check does not grow with the vector

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


def pieces(case: Case, rank: int) -> list[ResultPart]:
    """The collective promises these pieces to `rank`; nothing for a rank that gets no result."""
    blocks = case.collective in ("reduce_scatter", "scatter", "gather", "allgather", "alltoall")
    length = case.whole // case.size if blocks else case.whole
    return oracle.pieces(case.collective, case.size, rank, case.root, length)


def wrong(case: Case, rank: int, result: Array) -> int:
    """Count the elements of this rank's result that are not what they should be."""
    return sum(
        _differing(case, result[at : at + length], [pattern(r, source, source + length, case.dtype) for r in ranks])
        for at, length, ranks, source in (part for piece in pieces(case, rank) for part in _slices(piece))
    )


def _slices(piece: ResultPart) -> Iterator[ResultPart]:
    for start in range(0, piece.length, SLICE):
        yield ResultPart(piece.at + start, min(SLICE, piece.length - start), piece.ranks, piece.source + start)


def _differing(case: Case, got: Array, inputs: Sequence[Array]) -> int:
    if len(inputs) == 1 or not case.kind.reduces:
        return int(numpy.count_nonzero(got != inputs[0]))
    if case.op == "avg" and got.dtype.kind in "biu":  # an integer average may be rounded either way
        mean = sum(x.astype(numpy.float64) for x in inputs) / len(inputs)
        return int(numpy.count_nonzero(numpy.abs(got.astype(numpy.float64) - mean) >= 1))
    return int(numpy.count_nonzero(oracle.wrong(got, oracle.reduced(case.op, inputs))))
