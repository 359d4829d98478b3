"""Where what is owed lies, for methods whose calls read and write it: one memory for each bucket, and as much again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hocket.compression.bucket import Bucket
from hocket.compression.entries import Entry


class Residuals:
    """The residuals of a `Compressor`'s entries, one after the other as their vectors are in a call."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, ...], tuple[Bucket, Bucket]] = {}
        """By the keys of a call.  Of each entry one has the residual, and the other is its spare memory."""

    def of(self, keys: Sequence[str], entries: Sequence[Entry]) -> tuple[Bucket, Bucket]:
        """The vectors that the entries owe, and memory for what they will owe.  Copies, if other calls had these keys
        last."""
        kept, spare = self._pair(tuple(keys), entries)
        if entries[0].residual is spare.parts[0]:
            kept, spare = spare, kept
        for entry, part in zip(entries, kept.parts, strict=True):
            if entry.residual is not part:  # a new one, or the last call counted for some and not for others
                part[...] = entry.residual
                entry.residual = part
        for entry, part in zip(entries, spare.parts, strict=True):
            entry.spare = part
        return kept, spare

    def _pair(self, keys: tuple[str, ...], entries: Sequence[Entry]) -> tuple[Bucket, Bucket]:
        shapes = [entry.residual.shape for entry in entries]
        pair = self._pairs.get(keys)
        if pair is None or [part.shape for part in pair[0].parts] != shapes:
            for other in [each for each in self._pairs if not set(keys).isdisjoint(each)]:
                del self._pairs[other]
            count = sum(entry.residual.size for entry in entries)
            first, second = (Bucket.of(np.empty(count, np.float32), shapes, keys) for _ in range(2))
            pair = self._pairs[keys] = first, second
        return pair
