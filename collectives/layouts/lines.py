"""Tables for `copies.copy`: where the parts of arrays lie, as lines of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy

from hocket.collectives.layouts.arrays import Words

AXES = 3
"""Axes of a line; parts with more have several lines."""
Table = numpy.ndarray[Any, Any]


def table(pairs: Sequence[tuple[Words, Words]]) -> Table:
    """A line or more for each pair of views of one shape and one size of elements: from the first to the second."""
    found = [line for of, to in pairs if of.size for line in _lines(of, to)]
    return numpy.array(found, numpy.int64).reshape(len(found), 3 + 3 * AXES)


def steps(pairs: Sequence[tuple[Words, Words]], most: int) -> Iterator[Table]:
    """Tables of about so many bytes each."""
    begin, nbytes = 0, 0
    for end, (of, _) in enumerate(pairs, 1):
        nbytes += of.nbytes
        if nbytes >= most or end == len(pairs):
            yield table(pairs[begin:end])
            begin, nbytes = end, 0


def _lines(of: Words, to: Words) -> Iterator[list[int]]:
    row = of.itemsize
    axes: list[tuple[int, int, int]] = []
    for n, a, b in reversed(list(zip(of.shape, of.strides, to.strides, strict=True))):
        if n == 1:
            continue
        if not axes and a == b == row:
            row *= n
        elif axes and a == axes[-1][0] * axes[-1][1] and b == axes[-1][0] * axes[-1][2]:
            axes[-1] = (axes[-1][0] * n, *axes[-1][1:])
        else:
            axes.append((n, a, b))
    inner, outer = axes[:AXES][::-1], axes[AXES:]
    short = [(1, 0, 0)] * (AXES - len(inner)) + inner
    flat = [number for axis in short for number in axis]
    for at in product(*(range(n) for n, _, _ in outer)):
        aside = [sum(i * axis[side] for i, axis in zip(at, outer, strict=True)) for side in (1, 2)]
        yield [int(of.ctypes.data) + aside[0], int(to.ctypes.data) + aside[1], row, *flat]
