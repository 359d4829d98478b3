"""The versions that a rank of the publisher keeps, and who reads them."""

from __future__ import annotations

import threading
from collections import Counter

import numpy

from hocket.collectives.layouts.arrays import Words
from hocket.collectives.layouts.given import Given

KEPT = 2
"""Versions that a rank keeps: the newest one, and the one before."""
Version = list[list[Words]]
"""The words of a rank's arrays, by number, in the order of its boxes."""


class Versions:
    """The versions that a rank offers, and how many readers hold each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offered: dict[int, Version] = {}
        self._held: Counter[int] = Counter()
        self._spare: Version | None = None

    def add(self, number: int, given: Given) -> None:
        """Copy the arrays, into memory of a version that nobody holds any more if there is one."""
        with self._lock:
            old = self._offered.pop(number - KEPT, None)
            if old is not None and not self._held[number - KEPT]:
                self._spare = old
            copy, self._spare = self._spare, None
        if copy is None:
            copy = [[numpy.empty(each.words.shape, each.words.dtype) for each in some] for some in given.held]
        for into, some in zip(copy, given.held, strict=True):
            for words, array in zip(into, some, strict=True):
                words[...] = array.words
        with self._lock:
            self._offered[number] = copy

    def hold(self, number: int) -> Version | None:
        """This version, kept as it is until `release`; None if it is not offered any more."""
        with self._lock:
            found = self._offered.get(number)
            self._held[number] += found is not None
            return found

    def release(self, number: int) -> None:
        """A reader needs it no more."""
        with self._lock:
            self._held[number] -= 1
