"""Calls of a `Compressor` that count together: what all of them leave is kept, or nothing is."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from hocket.compression.bucket import Bucket
from hocket.compression.entries import KeyEntry, parked
from hocket.compression.memory import Array, chosen, fetched, finite, squared
from hocket.compression.method import Averaged, MethodState
from hocket.extending import InOrder, in_order, on_host


class StepResult(NamedTuple):
    """The effect of a call on one key's vector, and what it leaves if it counts."""

    entry: KeyEntry
    result: Array
    finite: bool
    """The same on all ranks."""
    kept: MethodState
    lr: float | None
    square: float
    left: Array | None
    """The unsent part; None: without feedback ..."""
    left_square: float
    """... the square of its length is enough."""

    def settle(self, counts: Any) -> None:
        """The call counts, or it does not."""
        if not counts:
            self.result[...] = np.nan
            return
        entry = self.entry
        entry.kept, entry.square = self.kept, self.square
        entry.lr = entry.lr if self.lr is None else self.lr
        if self.left is None:
            entry.left_square = self.left_square
        else:
            entry.residual, entry.spare = self.left, entry.residual

    def where(self) -> list[Array]:
        return [self.result]

    def leave(self) -> None:
        """Nothing of it lies on a GPU."""


class OnGpu(NamedTuple):
    """The same of vectors on a GPU, which alone knows what is finite: both cases are computed, and one is taken."""

    entries: Sequence[KeyEntry]
    results: Sequence[Array]
    finite: Any
    kepts: Sequence[MethodState]
    ratios: Sequence[float]
    """By which the learning rates' change multiplies what stays."""
    owed: Bucket
    left: Bucket | None
    parks: bool
    """Does what is kept lie in host memory until the next call?"""

    def settle(self, counts: Any) -> None:
        for result in self.results:
            result[...] = chosen(counts, result, np.nan)
        for entry, kept in zip(self.entries, self.kepts, strict=True):
            entry.kept = _of_two(counts, kept, entry.kept)
        if self.left is not None:
            self._owe(counts, self.left)
        self.leave()

    def where(self) -> Sequence[Array]:
        return self.results

    def leave(self) -> None:
        """The call is over, whether it counts or was dropped."""
        for entry in self.entries if self.parks else ():
            entry.kept, entry.residual, entry.spare = parked(entry.kept), fetched(entry.residual), None

    def _owe(self, counts: Any, left: Bucket) -> None:
        for part, ratio in zip(self.owed.parts, self.ratios, strict=True):
            if ratio != 1:
                part *= ratio
        whole = left.flat
        whole[...] = chosen(counts, whole, self.owed.flat)
        for entry, part, owed in zip(self.entries, left.parts, self.owed.parts, strict=True):
            entry.residual, entry.spare = part, owed


def of_two(result: Array, kept: MethodState, before: MethodState) -> MethodState:
    """The state after a call on a GPU: `kept`, where its result is finite, else `before`."""
    return _of_two(finite(result), kept, before)


def _of_two(counts: Any, kept: MethodState, before: MethodState) -> MethodState:
    return {
        name: each if on_host(each) else chosen(counts, each, before.get(name, 0.0)) for name, each in kept.items()
    }


def on_gpu(
    feedback: bool, parks: bool, entries: Sequence[KeyEntry], results: Sequence[Array], averages: Sequence[Averaged],
    residuals: tuple[Bucket, Bucket], square: Any, rates: Sequence[float | None],
) -> OnGpu:  # fmt: skip
    """The outcome of a call at these rates that has just been made; `residuals`: what was owed, and what is left."""
    owed, left = residuals
    ratios = [entry.lr / lr if lr and entry.lr else 1.0 for entry, lr in zip(entries, rates, strict=True)]
    for entry, lr in zip(entries, rates, strict=True):
        entry.lr = entry.lr if lr is None else lr
        entry.square, entry.left_square = square, None if feedback else squared(left.flat)
    flags = [finite(each) for each in results] + [one.finite for one in averages if one.finite is not None]
    there, kepts = reduce(operator.and_, flags), [one.kept for one in averages]
    return OnGpu(entries, results, there, kepts, ratios, owed, left if feedback else None, parks)


class Step:
    """The calls between `Compressor.step()` and `end()`; as a context manager, those of the block."""

    def __init__(self, order: InOrder) -> None:
        self._calls, self.over = order, False
        self._outcomes: list[StepResult | OnGpu] = []
        self._entries: set[int] = set()  # their ids

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.end()
        else:
            self.drop()

    def __contains__(self, entry: KeyEntry) -> bool:
        return id(entry) in self._entries

    def add(self, outcome: StepResult | OnGpu, *entries: KeyEntry) -> None:
        """Add the outcome of a call that has just been made."""
        self._outcomes.append(outcome)
        self._entries.update(map(id, entries))

    @in_order("places")
    def end(self) -> Any:
        """Let the calls count; if a result is not finite, make all of them NaN instead.

        Returns whether they count, the same on all ranks; of vectors on a GPU, a bool there.
        """
        counts = reduce(operator.and_, (one.finite for one in self._outcomes), True)
        for one in self._outcomes:
            one.settle(counts)
        self.drop()
        return counts

    @property
    def places(self) -> list[Array]:
        """Arrays that lie where its calls' do."""
        return [each for one in self._outcomes for each in one.where()]

    @in_order("places")
    def drop(self) -> None:
        """Forget the calls: what is owed stays what it was before them.  Their results are as they are."""
        for one in self._outcomes:
            one.leave()
        self._outcomes, self._entries, self.over = [], set(), True
