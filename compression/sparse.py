"""A few of the elements: the largest of each rank, or the same random ones on all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.method import Array, Averaged, Kept, Method, joined, parted
from hocket.errors import ArgumentError

PAIR = 8
"""Bytes of a value and its index."""


def checked(density: float) -> float:
    """The part of the elements that is sent."""
    if not 0 < density <= 1:
        raise ArgumentError(f"a density is above 0 and at most 1, got {density!r}")
    return density


def count(density: float, n: int) -> int:
    """Elements that are sent, of n."""
    return min(n, max(1, math.ceil(density * n)))


class TopK(Method):
    """Each rank's elements of largest magnitude, with their indices, added by `Communicator.allreduce_sparse`.

    8k(p-1) bytes per rank for 2 to 4 ranks; for more 16k(p-1)/p if all choose the same, 8k(p-1)(1 + 1/p) if none do.

    Of equal magnitudes any, the same on every run.  Without feedback what is small is never sent.

    Source: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich et al.,
    "Sparsified SGD with Memory", NeurIPS 2018.
    """

    def __init__(self, density: float) -> None:
        self.density = checked(density)

    @property
    def name(self) -> str:
        return f"topk:{self.density:g}"

    def average(self, comm: Any, vector: Array, kept: Kept, seed: int) -> Averaged:
        return self.average_all(comm, [vector], [kept], [seed])[0]

    def average_all(
        self, comm: Any, vectors: Sequence[Array], kepts: Sequence[Kept], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One call for all; each vector has its own largest."""
        whole, begin, chosen = joined(vectors), 0, []
        for vector in vectors:
            k = count(self.density, vector.size)
            part = np.abs(whole[begin : begin + vector.size])  # of which NaN are the largest
            chosen.append(begin + np.sort(np.argpartition(part, vector.size - k)[vector.size - k :]))
            begin += vector.size
        every = np.concatenate(chosen)
        indices, values = comm.allreduce_sparse(every, whole[every], whole.size)
        result, sent = np.zeros_like(whole), np.zeros_like(whole)
        result[indices] = values * np.float32(1 / comm.size)
        sent[every] = whole[every]
        parts = zip(parted(result, vectors), parted(sent, vectors), chosen, strict=True)
        return [Averaged(one, of_it, {}, len(some) * PAIR) for one, of_it, some in parts]


class RandomK(Method):
    """The same random elements of all ranks, drawn anew in each call: only values are sent, 8k(p-1)/p bytes per rank.

    Source: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.  Drawn without replacement.
    """

    def __init__(self, density: float) -> None:
        self.density = checked(density)

    @property
    def name(self) -> str:
        return f"randomk:{self.density:g}"

    def average(self, comm: Any, vector: Array, kept: Kept, seed: int) -> Averaged:
        flat = vector.reshape(-1)
        k = count(self.density, flat.size)
        chosen = np.random.Generator(np.random.Philox(seed)).choice(flat.size, k, replace=False, shuffle=False)
        values = flat[chosen]
        sent = np.zeros_like(flat)
        sent[chosen] = values
        result = np.zeros_like(flat)
        result[chosen] = comm.allreduce(values, "avg")
        return Averaged(result.reshape(vector.shape), sent.reshape(vector.shape), {}, values.nbytes)
