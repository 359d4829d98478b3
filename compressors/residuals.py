"""Where what is owed lies, for calls that read and write it as one: one memory for each bucket, and as much again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.arguments import choices
from hocket.compression.bucket import Bucket
from hocket.compression.entries import KeyEntry
from hocket.compression.memory import Array, empty, moved, namespace, size, squared
from hocket.compression.method import CHUNK, MethodState, chunks
from hocket.errors import ArgumentError
from hocket.extending import on_host

KEEP = ("gpu", "host")


class Residuals:
    """The residuals of a `Compressor`'s entries, one after the other as their vectors are in a call."""

    def __init__(self, keep: str) -> None:
        if keep not in KEEP:
            raise ArgumentError(f"keep={keep!r}: {choices(keep, KEEP)}")
        self.parks = keep == "host"
        self._pairs: dict[tuple[str, ...], tuple[Bucket, Bucket]] = {}
        """By the keys of a call.  Of each entry one has the residual, and the other is its spare memory."""

    def of(self, keys: Sequence[str], entries: Sequence[KeyEntry], like: Array) -> tuple[Bucket, Bucket]:
        """The vectors that the entries owe, and memory for what they will owe, where `like` lies.  Copies, if other
        calls had these keys last."""
        kept, spare = self._pair(tuple(keys), entries, like)
        if entries[0].residual is spare.parts[0]:
            kept, spare = spare, kept
        for entry, part in zip(entries, kept.parts, strict=True):
            if entry.residual is not part:  # a new one, or the last call counted for some and not for others
                part[...] = moved(entry.residual, like) if on_host(entry.residual) else entry.residual
                entry.residual = part
        for entry, part in zip(entries, spare.parts, strict=True):
            entry.spare = part
        return kept, spare

    def forget(self, key: str) -> None:
        """Keep the memory of calls with this key no longer."""
        for keys in [each for each in self._pairs if key in each]:
            del self._pairs[keys]

    def end(self) -> None:
        """The call's own memory on a GPU is the library's again, if nothing is kept there."""
        if self.parks:
            self._pairs.clear()

    def _pair(self, keys: tuple[str, ...], entries: Sequence[KeyEntry], like: Array) -> tuple[Bucket, Bucket]:
        shapes = [tuple(entry.residual.shape) for entry in entries]
        pair = self._pairs.get(keys)
        if pair is None or [tuple(part.shape) for part in pair[0].parts] != shapes:
            for key in keys:
                self.forget(key)
            count = sum(size(entry.residual) for entry in entries)
            first, second = (Bucket.of(empty(like, count), shapes, keys) for _ in range(2))
            pair = self._pairs[keys] = first, second
        return pair


def owing(new: Array, owed: Array | None, factor: float, into: Array | None = None) -> float:
    """The square of the length of what is to be sent: `new` + `owed` x factor.  `into` becomes that."""
    flat, kept = new.reshape(-1), None if owed is None else owed.reshape(-1)
    whole, square = None if into is None else into.reshape(-1), 0.0
    room = np.empty(min(CHUNK, flat.size), np.float32)
    for one in chunks(flat):
        part = room[: one.stop - one.start] if whole is None else whole[one]
        if kept is None:
            part[...] = flat[one]
        elif factor == 1:
            np.add(flat[one], kept[one], out=part)
        else:
            np.multiply(kept[one], factor, out=part)
            part += flat[one]
        square += squared(part)  # while it is near
    if into is not None and not math.isfinite(square):
        into[...] = np.nan  # a part might not be sent, and stay
    return square


def sums(new: Bucket, owed: Bucket | None, factors: Sequence[float], into: Bucket) -> Any:
    """Make `into` what is to be sent, new + owed x factor, on a GPU.  The square of its length, there."""
    xp = namespace(new.flat)
    if owed is None:
        into.flat[...] = new.flat
    elif all(factor == 1 for factor in factors):
        xp.add(new.flat, owed.flat, out=into.flat)
    else:
        for part, old, factor, to in zip(new.parts, owed.parts, factors, into.parts, strict=True):
            xp.multiply(old, factor, out=to)
            to += part
    return squared(into.flat)


def near(kept: MethodState, like: Array) -> MethodState:
    """The floats that a method keeps, where `like` lies: they may come from a checkpoint."""
    return {
        name: moved(each, like) if on_host(each) and each.dtype.kind == "f" else each for name, each in kept.items()
    }


def spoilt(whole: Array) -> None:
    """Make all of it NaN where an element is not finite, on a GPU: a part might not be sent, and stay."""
    whole += (whole * 0).sum()
