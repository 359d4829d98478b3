"""Chunk-local top-k with two bits for each value: SparseLoCo's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.arguments import whole
from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array
from hocket.compression.method import Averaged, MethodState, Together, joined
from hocket.compression.sparse.methods import checked, count
from hocket.errors import ArgumentError

LONGEST = 1 << 16
"""Elements of a chunk: an index is 16 bits."""


class TwoBits(Together):
    """The largest of every `chunk` elements; of each its index, its sign, and which of two magnitudes it is nearer to.

    The magnitudes are the chunk's own, float32: the means of the chosen ones above and below their mean.  Above a
    density of 1/16 a bit for each element is shorter than indices.
    (p-1)(8 + k/4 + min(2 k, chunk/8)) bytes per rank for each chunk, k = density x chunk: at 1 % of 4,096 a vector is
    162 times smaller, at 50 % 16 times.  All ranks' codes go to all, so for many ranks an allreduce sends less.

    Source: Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo" (arXiv 2508.15706).
    """

    def __init__(self, density: float, chunk: int = 4096) -> None:
        self.density, self.chunk = checked(density), whole(chunk, "chunk")
        if not 1 <= self.chunk <= LONGEST:
            raise ArgumentError(f"chunk={chunk} must be 1 to {LONGEST}")

    @property
    def name(self) -> str:
        return joined("twobits", f"{self.density:g}", self.chunk)

    host = "its bits are packed by NumPy"

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One call for all; each has its own chunks."""
        wires = [self.encoded(part.reshape(-1)) for part in vectors.parts]
        every = comm.allgather(np.concatenate([wire.reshape(-1) for wire in wires])[None])
        begin = 0
        for vector, result, wire in zip(vectors.parts, results.parts, wires, strict=True):
            rows = [row.reshape(wire.shape) for row in every[:, begin : begin + wire.size]]
            total = self.decoded(rows[0], vector.size)
            for row in rows[1:]:  # in rank order: the same bits on all ranks
                total += self.decoded(row, vector.size)
            vector -= self.decoded(wire, vector.size).reshape(vector.shape)
            np.multiply(total.reshape(result.shape), np.float32(1 / comm.size), out=result)
            begin += wire.size
        return [Averaged({}, wire.nbytes) for wire in wires]

    def _chunk(self, n: int) -> tuple[int, int]:
        """Elements of a chunk of a vector of n, and how many are sent; the last chunk is filled up with zeros."""
        chunk = max(min(self.chunk, n), 1)
        return chunk, count(self.density, chunk)

    def _places(self, chunk: int, k: int) -> tuple[int, bool]:
        """Bytes that say which elements of a chunk were chosen; is it a bit for each?"""
        bits = -(-chunk // 8)
        return min(bits, 2 * k), bits < 2 * k

    def encoded(self, x: Array) -> Array:
        """Bytes: a row for each chunk; its magnitudes, which elements were chosen, their codes."""
        chunk, k = self._chunk(x.size)
        rows = -(-x.size // chunk)
        padded = np.zeros((rows, chunk), np.float32)
        padded.reshape(-1)[: x.size] = x
        indices = np.argpartition(np.abs(padded), chunk - k, axis=1)[:, chunk - k :]
        indices.sort(axis=1)
        values = np.take_along_axis(padded, indices, axis=1)
        sizes = np.abs(values)
        high = sizes > sizes.mean(axis=1, keepdims=True)
        many = high.sum(axis=1)
        with np.errstate(invalid="ignore"):
            above = np.where(high, sizes, 0).sum(axis=1) / np.maximum(many, 1)
            below = np.where(high, 0, sizes).sum(axis=1) / np.maximum(k - many, 1)
        if self._places(chunk, k)[1]:
            chosen = np.zeros((rows, chunk), bool)
            np.put_along_axis(chosen, indices, True, axis=1)
            places = np.packbits(chosen, axis=1)
        else:
            places = indices.astype("<u2").view(np.uint8).reshape(rows, 2 * k)
        bits = np.stack([values < 0, high], axis=2).reshape(rows, 2 * k)
        return np.concatenate(
            [
                np.stack([below, above], axis=1).astype(np.float32).view(np.uint8).reshape(rows, 8),
                places,
                np.packbits(bits, axis=1),
            ], axis=1,
        )  # fmt: skip

    def decoded(self, wire: Array, n: int) -> Array:
        """n floats: those that were not chosen are 0."""
        (chunk, k), rows = self._chunk(n), len(wire)
        levels = np.ascontiguousarray(wire[:, :8]).view(np.float32)
        end, bitmap = self._places(chunk, k)
        places = np.ascontiguousarray(wire[:, 8 : 8 + end])
        if bitmap:
            indices = np.nonzero(np.unpackbits(places, axis=1, count=chunk))[1].reshape(rows, k)
        else:
            indices = places.view("<u2").astype(np.intp)
        bits = np.unpackbits(wire[:, 8 + end :], axis=1, count=2 * k).reshape(rows, k, 2).astype(bool)
        sizes = np.where(bits[..., 1], levels[:, 1:], levels[:, :1])
        floats = np.zeros((rows, chunk), np.float32)
        np.put_along_axis(floats, indices, np.where(bits[..., 0], -sizes, sizes), axis=1)
        return floats.reshape(-1)[:n]
