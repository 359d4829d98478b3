"""Calls of a `Compressor` that count together: what all of them leave is kept, or nothing is."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

import numpy as np

from hocket.compression.entries import Entry
from hocket.compression.method import Array, Kept


class Outcome(NamedTuple):
    """The effect of a call on one key's vector, and what it leaves if it counts."""

    entry: Entry
    result: Array
    finite: bool
    """The same on all ranks."""
    kept: Kept
    lr: float | None
    square: float
    left: Array | None
    """The unsent part; None: without feedback ..."""
    left_square: float
    """... the square of its length is enough."""

    def settle(self) -> None:
        """The call counts."""
        entry = self.entry
        entry.kept, entry.square = self.kept, self.square
        entry.lr = entry.lr if self.lr is None else self.lr
        if self.left is None:
            entry.left_square = self.left_square
        elif self.left is entry.spare:
            entry.residual, entry.spare = entry.spare, entry.residual
        else:
            entry.residual[...] = self.left

    def kept_for_later(self) -> Outcome:
        """The same, with what was not sent in memory of the entry's: the next call takes the Compressor's."""
        if self.left is None or self.left is self.entry.spare:
            return self
        if self.entry.spare is None:
            self.entry.spare = np.empty_like(self.entry.residual)
        self.entry.spare[...] = self.left
        return self._replace(left=self.entry.spare)


class Step:
    """The calls between `Compressor.step()` and `end()`; as a context manager, those of the block."""

    def __init__(self) -> None:
        self.over = False
        self._outcomes: dict[int, Outcome] = {}  # by the entry's id

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.end()
        else:
            self.drop()

    def __contains__(self, entry: Entry) -> bool:
        return id(entry) in self._outcomes

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a call that has just been made."""
        self._outcomes[id(outcome.entry)] = outcome.kept_for_later()

    def end(self) -> bool:
        """Let the calls count; if a result is not finite, make all of them NaN instead.

        Returns whether they count, the same on all ranks.
        """
        counts = all(one.finite for one in self._outcomes.values())
        for one in self._outcomes.values():
            if counts:
                one.settle()
            else:
                one.result[...] = np.nan
        self.drop()
        return counts

    def drop(self) -> None:
        """Forget the calls: what is owed stays what it was before them.  Their results are as they are."""
        self._outcomes, self.over = {}, True
