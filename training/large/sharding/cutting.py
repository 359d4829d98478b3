"""Cutting named arrays among ranks: units of arrays that are sent together, each cut into near-equal pieces.

A rank's shard is its pieces of all units, one behind the other, in one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from hocket.errors import ArgumentError
from hocket.training.buckets import filled
from hocket.training.flat import Flat


class Unit(NamedTuple):
    """Arrays that are sent together."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    """Elements that each rank has of it."""
    shard: slice
    """This rank's, in its shard."""

    @property
    def size(self) -> int:
        """Elements of all of it."""
        return sum(self.counts)


class ShardPart(NamedTuple):
    """A rank's part of one array."""

    name: str
    first: int
    """The place of its first element in the array, flattened."""
    shard: slice


def cut(flat: Flat, groups: Sequence[Sequence[str]], rank: int, size: int) -> list[Unit]:
    """A unit for each group of names.

    >>> import numpy as np
    >>> flat = Flat({"w": np.zeros(5, np.float32), "b": np.zeros(2, np.float32)})
    >>> [(unit.counts, unit.shard) for unit in cut(flat, [["w", "b"]], rank=1, size=2)]
    [((3, 4), slice(0, 4, None))]
    """
    units, at = [], 0
    for names in groups:
        count = flat.count(names)
        counts = tuple((r + 1) * count // size - r * count // size for r in range(size))
        units.append(Unit(tuple(names), counts, slice(at, at + counts[rank])))
        at += counts[rank]
    return units


def pieces(flat: Flat, units: Sequence[Unit], rank: int) -> list[ShardPart]:
    """This rank's pieces of each array."""
    own = []
    for unit in units:
        begin = sum(unit.counts[:rank])
        end, at = begin + unit.counts[rank], 0
        for name in unit.names:
            first, last = max(begin, at), min(end, at + flat.sizes[name])
            if first < last:
                start = unit.shard.start + first - begin
                own.append(ShardPart(name, first - at, slice(start, start + last - first)))
            at += flat.sizes[name]
    return own


def bucketed(flat: Flat, nbytes: int) -> list[list[str]]:
    """Groups of neighbours, of so many bytes at least but for the last."""
    size = flat.dtype.itemsize
    return filled(flat.arrays, lambda name: "", lambda name: flat.sizes[name] * size, nbytes or inf, least=True)


def checked(flat: Flat, groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """Groups that a user has given; ArgumentError unless they name each array once."""
    given = [name for names in groups for name in names]
    wrong = [name for name in {*given, *flat.arrays} if given.count(name) != (name in flat.arrays)]
    if wrong or not all(groups):
        where = f"look at {min(wrong)!r}" if wrong else "one is empty"
        raise ArgumentError(f"units must name each parameter once, and none may be empty; {where}")
    return [[*names] for names in groups]
