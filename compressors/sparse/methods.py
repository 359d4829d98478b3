"""A few of the elements: the largest, those above a threshold, random ones, or the blocks that are not zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.arguments import whole
from hocket.codecs import not_below
from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array, finite, moved, namespace, size
from hocket.compression.method import (
    CHUNK,
    Averaged,
    Method,
    MethodState,
    Together,
    checked_half,
    chunks,
    joined,
    single,
)
from hocket.compression.sparse import fixed
from hocket.compression.sparse.allreduce import allreduce_sparse
from hocket.compression.sparse.pairs import itemsize, rounded
from hocket.errors import ArgumentError
from hocket.extending import on_host

SAMPLE = 4096
"""Elements of a vector that tell how large its largest are."""


def checked(density: float) -> float:
    """The part of the elements that is sent."""
    if not 0 < density <= 1:
        raise ArgumentError(f"a density must be above 0 and at most 1, got {density!r}")
    return density


def count(density: float, n: int) -> int:
    """Elements that are sent, of n."""
    return min(n, max(1, math.ceil(density * n)))


def largest(x: Array, k: int) -> Array:
    """The indices of the k elements of largest magnitude, ascending; NaN are the largest.

    Cost: one pass over x where a sample of it tells what is certainly too small; else a selection of all.
    """
    if not on_host(x):
        return _largest_of_rows(x, k)
    at = math.ceil(SAMPLE * k / x.size * 1.25 + 3 * math.sqrt(SAMPLE * k / x.size)) + 1
    some = None
    if x.size > 8 * SAMPLE and at < SAMPLE // 4:
        sample = np.abs(x[:: x.size // SAMPLE])
        least = np.partition(sample, len(sample) - at)[len(sample) - at]
        above = not_below(x, float(least), 2 * k)
        some = above if len(above) >= k else None
    if some is None:
        return np.sort(np.argpartition(np.abs(x), x.size - k)[x.size - k :])
    sizes = np.abs(x[some])
    keep = np.flatnonzero(~(sizes < np.partition(sizes, len(some) - k)[len(some) - k]))
    if len(keep) > k:  # some are as large as the last one, or NaN
        keep = np.sort(np.argpartition(sizes, len(some) - k)[len(some) - k :])
    return some[keep]


def _largest_of_rows(x: Array, k: int) -> Array:
    """The places of the k largest in each row, on a GPU, in no order."""
    xp = namespace(x)
    sizes, least = xp.abs(x), x.shape[-1] - k
    return xp.topk(sizes, k)[1] if hasattr(xp, "topk") else xp.argpartition(sizes, least, axis=-1)[..., least:]


class Sparse(Together):
    """Some of each rank's elements, with their indices, added by `allreduce_sparse`.

    6k(p-1) bytes per rank for 2 to 4 ranks; for more 12k(p-1)/p if all choose the same, 6k(p-1)(1 + 1/p) if none do.
    `codec`, "fp16" or "bf16": 4 bytes for each instead of 6; what the rounding loses is owed.
    """

    def __init__(self, codec: str | None = None) -> None:
        self.codec = checked_half(codec, "the values of pairs")

    def chosen(self, x: Array) -> Array:
        """Which are sent of a vector of one dimension: their indices, ascending."""
        raise NotImplementedError

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One call for all; of each vector its own."""
        begin, of_each = 0, []
        for part in vectors.parts:
            of_each.append(begin + self.chosen(part.reshape(-1)))
            begin += size(part)
        if not on_host(vectors.flat):
            total = results.flat
            sent = fixed.summed(comm, of_each, vectors.flat, total, self.codec)
            total *= single(1 / comm.size)
            vectors.flat[namespace(sent).concatenate(of_each)] -= sent
            each = 8 if self.codec is None else 6
            return [Averaged({}, len(some) * each) for some in of_each]
        every = np.concatenate(of_each)
        mine = vectors.flat[every]
        indices, values = allreduce_sparse(comm, every, mine, vectors.flat.size, codec=self.codec, out=results.flat)
        results.flat[indices] = values * np.float32(1 / comm.size)
        vectors.flat[every] = 0 if self.codec is None else mine - rounded(mine, self.codec)
        each = itemsize(mine.dtype, self.codec)
        there = finite(values) or None  # if not, whose are not?
        return [Averaged({}, len(some) * each, there) for some in of_each]


class TopK(Sparse):
    """Each rank's elements of largest magnitude.  `chunk`: of so many elements each, instead of the whole vector.

    Of equal magnitudes any, the same on every run.  Without feedback what is small is never sent.

    Source: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich et al.,
    "Sparsified SGD with Memory", NeurIPS 2018; with chunks, Sarfi et al., "Communication Efficient LLM Pre-training
    with SparseLoCo", 2025.
    """

    def __init__(self, density: float, chunk: int | None = None, codec: str | None = None) -> None:
        super().__init__(codec)
        self.density, self.chunk = checked(density), chunk
        if chunk is not None and whole(chunk, "chunk") < 1:
            raise ArgumentError(f"chunk={chunk} must be at least 1")

    @property
    def name(self) -> str:
        return joined("topk", f"{self.density:g}", self.chunk, self.codec)

    def chosen(self, x: Array) -> Array:
        n, xp = len(x), namespace(x)
        if not n:
            return moved(np.arange(0), x)
        if self.chunk is None or n <= self.chunk:
            return largest(x, count(self.density, n))
        indices, even = [], n // self.chunk * self.chunk
        k = count(self.density, self.chunk)
        for one in chunks(x[:even], max(1, CHUNK // self.chunk) * self.chunk):
            rows = x[one].reshape(-1, self.chunk)
            if xp is np:
                sizes = np.abs(rows)
                places = np.sort(np.argpartition(sizes, self.chunk - k, axis=1)[:, self.chunk - k :], axis=1)
            else:
                places = _largest_of_rows(rows, k)
            firsts = moved(np.arange(one.start, one.stop, self.chunk)[:, None], x)
            indices.append((places + firsts).reshape(-1))
        if even < n:
            indices.append(even + largest(x[even:], count(self.density, n - even)))
        return xp.concatenate(indices)


class Threshold(Sparse):
    """Each rank's elements of at least this magnitude: none, if all are smaller.

    Source: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015.
    """

    def __init__(self, least: float, codec: str | None = None) -> None:
        super().__init__(codec)
        if not least > 0:
            raise ArgumentError(f"a threshold must be above 0, got {least!r}")
        self.least = least

    @property
    def name(self) -> str:
        return joined("threshold", f"{self.least:g}", self.codec)

    host = "how many elements are large is known by looking at them; topk sends a number that is told"

    def chosen(self, x: Array) -> Array:
        return not_below(x, self.least)


class RandomK(Method):
    """The same random elements of all ranks, drawn anew in each call: only values are sent, 8k(p-1)/p bytes per rank.

    Source: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.  Drawn without replacement.
    """

    def __init__(self, density: float) -> None:
        self.density = checked(density)

    @property
    def name(self) -> str:
        return f"randomk:{self.density:g}"

    def average(self, comm: Any, vector: Array, result: Array, kept: MethodState, seed: int) -> Averaged:
        flat, into = vector.reshape(-1), result.reshape(-1)
        k = count(self.density, len(flat))
        drawn = np.random.Generator(np.random.Philox(seed)).choice(len(flat), k, replace=False, shuffle=False)
        chosen = moved(drawn, flat)
        values = flat[chosen]
        flat[chosen] = 0
        into[...] = 0
        into[chosen] = comm.allreduce(values, "avg")
        return Averaged({}, values.nbytes)


class NonZero(Method):
    """Nothing is lost: of blocks of elements those are sent that are not zero on some rank.

    2m(p-1)/p bytes per rank, where m are those of such blocks, and n/(4 block) for which they are: for gradients of
    embeddings, and of what a batch does not touch.

    Source: Fei et al., "Efficient Sparse Collective Communication and its Application to Accelerate Distributed Deep
    Learning" (OmniReduce), SIGCOMM 2021; here the ranks agree on the blocks first, and none has an aggregator.
    """

    def __init__(self, block: int = 256) -> None:
        if whole(block, "block") < 1:
            raise ArgumentError(f"block={block} must be at least 1")
        self.block = block

    @property
    def name(self) -> str:
        return "nonzero" if self.block == 256 else f"nonzero:{self.block}"

    host = "which blocks are not zero is known by looking at them"

    def average(self, comm: Any, vector: Array, result: Array, kept: MethodState, seed: int) -> Averaged:
        flat, into = vector.reshape(-1), result.reshape(-1)
        even = flat.size // self.block * self.block
        rows, rest = flat[:even].reshape(-1, self.block), flat[even:]
        nonzero = (rows != 0).any(1).astype(np.uint8)
        comm.allreduce(nonzero, "max")
        chosen = np.flatnonzero(nonzero)
        sums = comm.allreduce(np.concatenate([rows[chosen].reshape(-1), rest]), "avg")
        into[...] = 0
        into[:even].reshape(-1, self.block)[chosen] = sums[: chosen.size * self.block].reshape(-1, self.block)
        into[even:] = sums[chosen.size * self.block :]
        vector[...] = 0
        return Averaged({}, sums.nbytes + nonzero.nbytes)
