"""Norms whose bits do not depend on how vectors are cut among ranks.

A sum of floats depends on its order.  Here each square is split into multiples of fixed powers of two, `UNIT` bits
apart, whose whole-number sums are exact in every order: then ranks that hold pieces find what one that holds all does.
The three highest that occur in all of the vector count; a piece has at least these, as its own are no higher.
Source: Demmel and Nguyen, "Parallel reproducible summation", IEEE Trans. Computers 64(7), 2015.
Cost: for each communicator an allreduce of 160 bytes a vector (float64: 536); about fifteen passes over it, in pieces
that stay in a cache.  Of vectors on a GPU, where they are squared and added up, the host reads twice, and waits: two
numbers for each vector and each MOST of its elements, then three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.memory import cast, fetched, namespace, size
from hocket.extending import on_host
from hocket.training.flat import Array
from hocket.training.optimizers import chunks

UNIT, KEPT = 32, 3
"""Bits from one unit to the next, and how many of them count."""
LOWEST = {4: -10, 8: -34}
"""The lowest unit, in UNIT bits, by a float's bytes: squares of float32 are at least 2^-298."""
HIGHEST = {4: 7, 8: 30}
TOO_LARGE = 2.0 ** (UNIT * (HIGHEST[8] + 1))
ODD = 2
"""Numbers before the sums: how many elements are NaN, and how many pieces have one that is, or is too large."""
MOST, ROW = 1 << 24, 1 << 20
"""Elements of a GPU's vector that are squared at once, and those of which a float64 has the exact sum."""


def norm(vector: Array, *comms: Any) -> float:
    """The Euclidean norm of a vector, or of all ranks' pieces of one; NaN or infinity if an element is.

    Ranks are those of a communicator, or with several of the grid whose axes they are.

    The relative error is below 1e-9 up to 2e9 elements, even if one of them is as large as all others together.
    float64 whose squares are above 1e298 count as infinite, below 1e-323 as zero.

    >>> x = np.arange(10.0, dtype=np.float32)
    >>> norm(x) == norm(x[::-1]) == 285**0.5
    True
    """
    sums = squares([vector])
    for comm in comms:
        comm.allreduce(sums)
    return root(sums[0])


def squares(vectors: Sequence[Array]) -> Array:
    """The exact sums of squares of each vector: a row of whole numbers, which may be added up over ranks."""
    wide = vectors[0].dtype.itemsize
    sums: np.ndarray[Any, Any] = np.zeros((len(vectors), ODD + HIGHEST[wide] - LOWEST[wide] + 1), np.int64)
    if not on_host(vectors[0]):
        _add_there(vectors, sums, LOWEST[wide])
        return sums
    for row, vector in zip(sums, vectors, strict=True):
        for one in chunks(vector):
            _add(vector[one], row, LOWEST[wide])
    return sums


def root(row: Array) -> float:
    """The norm of a vector, of the sum of its rows."""
    nan, infinite, *sums = row.tolist()
    if nan or infinite:
        return math.nan if nan else math.inf
    top = max((at for at, each in enumerate(sums) if each), default=0)
    begin = max(0, top - KEPT + 1)
    total = sum(each << UNIT * at for at, each in enumerate(sums[begin : top + 1]))
    lowest = next(low for wide, low in LOWEST.items() if len(sums) == HIGHEST[wide] - low + 1)
    return math.ldexp(math.sqrt(total), UNIT * (begin + lowest) // 2)


def _add(part: Array, row: Array, lowest: int) -> None:
    """Add the squares of a few elements to a vector's row."""
    with np.errstate(over="ignore", under="ignore"):
        square = part.astype(np.float64)
        square *= square
    top = float(square.max())
    if not top < TOO_LARGE:
        nan = int(np.isnan(square).sum())
        row[:ODD] += nan, 1
        return
    for unit in _units(top, lowest):
        multiple = _multiple(square, unit)
        row[ODD + unit - lowest] += int(math.ldexp(float(multiple.sum()), -UNIT * unit))
        square -= multiple


def _units(top: float, lowest: int) -> range:
    """The units that count where the largest square is `top`."""
    at = (math.frexp(top)[1] - 1) // UNIT if top else lowest
    return range(at, max(at - KEPT, lowest - 1), -1)


def _multiple(square: Array, unit: int) -> Array:
    """The squares, rounded to multiples of this unit."""
    rounder = math.ldexp(1.5, 52 + UNIT * unit)
    multiple = square + rounder
    multiple -= rounder
    return multiple


def _add_there(vectors: Sequence[Array], rows: Array, lowest: int) -> None:
    """Add the squares of vectors on a GPU to their rows."""
    xp = namespace(vectors[0])
    parts = [(row, vector[begin : begin + MOST]) for row, vector in zip(rows, vectors, strict=True)
             for begin in range(0, size(vector), MOST)]  # fmt: skip
    if not parts:
        return
    told = []
    for _, part in parts:
        square = cast(part, "float64") ** 2
        told += [square.max(), cast(xp.isnan(square).sum(), "float64")]
    tops = fetched(xp.stack(told)).reshape(-1, 2)
    due, found = [], []
    for (row, part), (top, nan) in zip(parts, tops.tolist(), strict=True):
        if not top < TOO_LARGE:
            row[:ODD] += int(nan), 1
            continue
        square = cast(part, "float64") ** 2
        for unit in _units(top, lowest):
            multiple = _multiple(square, unit)
            due.append((row, ODD + unit - lowest))
            found.append(_whole(multiple, unit))
            square -= multiple
    for (row, at), sum_ in zip(due, fetched(xp.stack(found)).tolist() if found else [], strict=True):
        row[at] += sum_


def _whole(multiple: Array, unit: int) -> Any:
    """The exact sum of multiples of a unit, in units: ROW of them are added up as floats, and then whole numbers."""
    even, root = size(multiple) // ROW * ROW, math.ldexp(1.0, -UNIT * unit // 2)  # 1 / unit may be no float
    parts = [cast(multiple[:even].reshape(-1, ROW).sum(1) * root * root, "int64").sum()] if even else []
    rest = [cast(multiple[even:].sum() * root * root, "int64")] if even < size(multiple) else []
    return sum(parts + rest)
