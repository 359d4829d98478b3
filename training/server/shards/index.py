"""Keys of rows and their places, in NumPy: 10^7 keys in a dictionary take a gigabyte, and here a fifth of one."""

from __future__ import annotations

import numpy as np

from hocket.training.server.optimizers import Array
from hocket.training.server.tables import mixed

EMPTY = -1
BEGIN = 64
"""Cells at first.  A third of them are empty at least."""


class Index:
    """Places are numbers from 0 on, in the order in which keys came.

    >>> index = Index()
    >>> index.add(np.array([7, 3]))
    >>> index.find(np.array([3, 4, 7])).tolist(), len(index), index.keys.tolist()
    ([1, -1, 0], 2, [7, 3])
    """

    def __init__(self) -> None:
        self._keys, self._places = np.full(BEGIN, EMPTY), np.zeros(BEGIN, np.int32)
        self._by_place, self._count = np.zeros(BEGIN, np.int64), 0

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> Array:
        """All of them, by place."""
        return self._by_place[: self._count]

    def find(self, keys: Array) -> Array:
        """The places of these; -1: it is not there."""
        places = np.full(keys.size, -1)
        left, cells = np.arange(keys.size), self._cells(keys)
        while left.size:
            there = self._keys[cells]
            hit = there == keys[left]
            places[left[hit]] = self._places[cells[hit]]
            on = ~hit & (there != EMPTY)
            left, cells = left[on], cells[on] + 1 & self._keys.size - 1
        return places

    def add(self, keys: Array) -> None:
        """Give these the next places.  None of them is there, and none comes twice."""
        end = self._count + keys.size
        if end > self._by_place.size:
            self._by_place = np.resize(self._by_place, max(end, 2 * self._by_place.size))
        self._by_place[self._count : end] = keys
        first, self._count = self._count, end
        if 3 * end > 2 * self._keys.size:
            size = self._keys.size
            while 3 * end > 2 * size:
                size *= 2
            self._keys, self._places, first = np.full(size, EMPTY), np.zeros(size, np.int32), 0
        self._put(self._by_place[first:end], np.arange(first, end))

    def _put(self, keys: Array, places: Array) -> None:
        cells = self._cells(keys)
        while keys.size:
            free = self._keys[cells] == EMPTY
            self._keys[cells[free]] = keys[free]  # of several keys for a cell one is there then
            mine = free & (self._keys[cells] == keys)
            self._places[cells[mine]] = places[mine]
            keys, places, cells = keys[~mine], places[~mine], cells[~mine] + 1 & self._keys.size - 1

    def _cells(self, keys: Array) -> Array:
        """By high bits: the low ones say which shard a key is on."""
        return (mixed(keys.astype(np.uint64)) >> np.uint64(20)).astype(np.int64) & self._keys.size - 1
