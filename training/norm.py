"""Norms whose bits do not depend on how vectors are cut among ranks.

A sum of floats depends on its order.  Here each square is split into multiples of fixed powers of two, `UNIT` bits
apart, whose whole-number sums are exact in every order: then ranks that hold pieces find what one that holds all does.
The three highest that occur in all of the vector count; a piece has at least these, as its own are no higher.
Source: Demmel and Nguyen, "Parallel reproducible summation", IEEE Trans. Computers 64(7), 2015.
Cost: for each communicator an allreduce of 160 bytes a vector (float64: 536); about fifteen passes over it, in pieces
that stay in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

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
    sums = np.zeros((len(vectors), ODD + HIGHEST[wide] - LOWEST[wide] + 1), np.int64)
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
    at = (math.frexp(top)[1] - 1) // UNIT if top else lowest
    for unit in range(at, max(at - KEPT, lowest - 1), -1):
        rounder = math.ldexp(1.5, 52 + UNIT * unit)
        multiple = square + rounder
        multiple -= rounder
        row[ODD + unit - lowest] += int(math.ldexp(float(multiple.sum()), -UNIT * unit))
        square -= multiple
