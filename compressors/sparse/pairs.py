"""Indices and values on the wire: each value with the distance from the index before, in 2 bytes, or more if far.

A value is a number, or a row of numbers: then its dtype is one of rows, as `np.dtype((np.float32, (3,)))` is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hocket.errors import ArgumentError

Array = np.ndarray[Any, Any]
Sparse = tuple[Array, Array]
"""(indices, values): int64, ascending, each once."""
FAR = (1 << 16) - 1
"""The longest distance that a row can tell."""
MOST = 1 << 62
"""No vector is longer."""
BEYOND = "not the bytes of a sparse vector: a pair is beyond 2^62 elements, or a row of distance 0 has no pair after it"


def itemsize(dtype: np.dtype[Any], codec: str | None) -> int:
    """Bytes of a value and its distance."""
    return 2 + (2 * math.prod(dtype.shape) if codec else dtype.itemsize)


def element(values: Array) -> np.dtype[Any]:
    """The dtype of one of them."""
    return np.dtype((values.dtype, values.shape[1:]))


def packed(some: Sparse, first: int, codec: str | None) -> Array:
    """A row of bytes for each value.  No index is below `first`.

    Rows whose distance is 0 stand before the row of a value that is further than FAR away: instead of a value they have
    how many times FAR is between, the lowest bytes first.

    >>> packed((np.array([5, 6]), np.array([1, 2], np.int8)), 5, None).tolist()
    [[1, 0, 1], [1, 0, 2]]
    >>> packed((np.array([700 * FAR + 3]), np.array([1], np.int8)), 0, None).tolist()
    [[0, 0, 188], [0, 0, 2], [4, 0, 1]]
    """
    indices, values = some
    steps = np.diff(indices, prepend=first - 1)
    times = (steps - 1) // FAR
    kind = _kind(element(values), codec)
    far, width = np.flatnonzero(times), kind.itemsize - 2
    digits, more = _digits(times[far], width)
    before = np.zeros(len(steps), np.int64)
    before[far] = more
    places = np.cumsum(before + 1) - 1
    rows = np.zeros(len(steps) + int(before.sum()), kind)
    rows["step"][places] = steps - times * FAR
    rows["value"][places] = _halved(values, codec) if codec else values
    raw = rows.view(np.uint8).reshape(len(rows), kind.itemsize)
    for j in range(max(more, default=0)):
        has = more > j
        raw[places[far][has] - more[has] + j, 2:] = digits[has, j]
    return raw


def unpacked(rows: Array, dtype: np.dtype[Any], first: int, codec: str | None) -> Sparse:
    """The sparse vector that `packed` had.  ArgumentError if `rows` are not what it makes: they may come from a
    stranger."""
    kind = _kind(dtype, codec)
    raw = np.ascontiguousarray(rows).reshape(-1, kind.itemsize)
    entries = raw.reshape(-1).view(kind)
    own = entries["step"] != 0
    steps = entries["step"].astype(np.int64)
    if not own.all():
        steps = steps[own] + FAR * _times(raw[:, 2:], own)
        entries = entries[own]
    if float(first) + steps.sum(dtype=float) > MOST:
        raise ArgumentError(BEYOND)
    return np.cumsum(steps) + (first - 1), _widened(entries["value"], codec) if codec else entries["value"]


def _kind(dtype: np.dtype[Any], codec: str | None) -> np.dtype[Any]:
    """The dtype of a row on the wire."""
    return np.dtype([("step", np.uint16), ("value", np.dtype((np.uint16, dtype.shape)) if codec else dtype)])


def _digits(times: Array, width: int) -> tuple[Array, Array]:
    """Numbers as digits of so many bytes, the lowest first, [number, digit, byte]; how many digits each has."""
    count = -(-8 // width)
    padded = np.zeros((len(times), count * width), np.uint8)
    padded[:, :8] = times.astype("<i8").view(np.uint8).reshape(-1, 8)
    digits = padded.reshape(-1, count, width)
    return digits, count - np.argmax(np.asarray(digits.any(2))[:, ::-1], 1)


def _times(fields: Array, own: Array) -> Array:
    """For each row that has a value, the number that the rows before it tell.  `fields`: the values' bytes."""
    width, places = fields.shape[1], np.flatnonzero(own)
    others = np.flatnonzero(~own)
    number = np.searchsorted(places, others)  # of the value that comes next
    digit = others - np.concatenate([[-1], places])[number] - 1
    with np.errstate(over="ignore", invalid="ignore"):
        powers = 256.0 ** np.minimum(np.arange(width), 100)  # what is allowed is exact; more would be infinite
        terms = fields[others] @ powers * 256.0 ** (width * digit)
    if (number == len(places)).any() or not (terms < MOST / FAR).all():
        raise ArgumentError(BEYOND)
    times = np.zeros(len(places), np.int64)
    np.add.at(times, number, terms.astype(np.int64))
    return times


def rounded(values: Array, codec: str) -> Array:
    """float32 values rounded to `codec`, as the receiver gets them."""
    return _widened(_halved(values, codec), codec)


def _halved(values: Array, codec: str | None) -> Array:
    if codec == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32)
    halves = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)  # to the nearest, ties to even
    return np.where(np.isnan(values), np.uint16(0x7FC0), halves)


def _widened(halves: Array, codec: str | None) -> Array:
    if codec == "fp16":
        return np.ascontiguousarray(halves).view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << 16).view(np.float32)
