"""Two thin matrices instead of a wide one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.codecs import thin
from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array, chosen, finite, moved, namespace, size
from hocket.compression.method import Averaged, MethodState, Together, checked_half, joined
from hocket.errors import ArgumentError
from hocket.extending import on_host


class PowerSGD(Together):
    """One step of a power iteration, from where the last call ended: 8r(a + b)(p-1)/p bytes per rank for a x b.

    Exact where the average has no more than this rank.  Arrays of one dimension, and those that two thin matrices would
    not make smaller, are averaged as they are.  Every rank multiplies for itself: in host memory by kernels that make
    the same bits on every machine; on GPUs these want one library, and one kind of GPU.

    `codec`, "bf16" or "fp16": what the thin matrices are sent as, half as many bytes; what the rounding loses is owed.
    (A number above 65504 is too much for fp16, and makes the result NaN.)

    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS
    2019.
    """

    def __init__(self, rank: int, codec: str | None = None) -> None:
        if rank < 1:
            raise ArgumentError(f"PowerSGD needs a rank of at least 1, got {rank!r}")
        self.rank, self.codec = rank, checked_half(codec, "PowerSGD's matrices")

    @property
    def name(self) -> str:
        return joined("powersgd", self.rank, self.codec)

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """Two calls for all: one of what is averaged as it is and of the first thin matrices, one of the second.

        With a codec three: what is averaged as it is stays float32, as nothing of its rounding would be owed.
        """
        matrices = [self._matrix(vector) for vector in vectors.parts]
        qs = [self._start(*each) for each in zip(matrices, kepts, seeds, strict=True)]
        here = on_host(vectors.flat)
        across, along = (thin.across, thin.along) if here else (lambda m, q: m @ q, lambda m, p: m.T @ p)
        first = [m if q is None else across(m, q) for m, q in zip(matrices, qs, strict=True)]
        ps = _averaged(comm, first, [None if q is None else self.codec for q in qs])
        ps = [p if q is None else _orthonormal(p) for p, q in zip(ps, qs, strict=True)]
        back = [m[:0] if q is None else along(m, p) for m, p, q in zip(matrices, ps, qs, strict=True)]
        averaged = _averaged(comm, back, [self.codec] * len(back))
        averages, width, xp = [], 2 if self.codec else 4, namespace(vectors.flat)
        for matrix, result, p, q in zip(matrices, results.parts, ps, averaged, strict=True):
            if not size(q):
                result[...], matrix[...] = p.reshape(result.shape), 0
                averages.append(Averaged({}, matrix.nbytes))
                continue
            into = self._matrix(result)
            if here:
                thin.apart(matrix, p, q, into)
            else:
                xp.matmul(p, q.T, out=into)
                matrix -= into
            # Columns of q that became zero are reset: they would stay zero for ever.
            lost = ~(q != 0).any(0)
            kept = {"q": xp.where(lost, moved(np.eye(*q.shape, dtype=np.float32), q), q)}
            averages.append(Averaged(kept, (size(p) + size(q)) * width, finite(p) & finite(q)))
        return averages

    def _matrix(self, vector: Array) -> Array:
        rows = vector.shape[0] if vector.ndim > 1 else 1
        return vector.reshape(rows, -1) if size(vector) else vector.reshape(rows, 0)

    def _start(self, matrix: Array, kept: MethodState, seed: int) -> Array | None:
        """Where the power iteration goes on; None: two thin matrices would not be smaller."""
        rows, columns = matrix.shape
        if self.rank * (rows + columns) >= size(matrix):
            return None
        if "q" in kept:
            return kept["q"]
        drawn = np.random.Generator(np.random.Philox(seed)).standard_normal((columns, self.rank), np.float32)
        return moved(drawn, matrix)

    def redealt(self, kepts: Sequence[MethodState], count: int, rank: int, size: int) -> MethodState:
        return kepts[0]


def _averaged(comm: Any, arrays: Sequence[Array], codecs: Sequence[str | None]) -> list[Array]:
    """The average of each, in one call for each codec."""
    averages = list(arrays)
    for codec in sorted(set(codecs), key=str):
        which = [i for i, own in enumerate(codecs) if own == codec]
        whole = namespace(arrays[0]).concat([arrays[i].reshape(-1) for i in which])
        if size(whole):
            comm.allreduce(whole, "avg", codec=codec)
        parts = Bucket.of(whole, [arrays[i].shape for i in which]).parts
        for i, part in zip(which, parts, strict=True):
            averages[i] = part
    return averages


def _orthonormal(p: Array) -> Array:
    """The columns of p, made orthonormal; where one is not finite, a NaN, the same on all ranks."""
    xp = namespace(p)
    if xp is not np:
        return chosen(finite(p), xp.linalg.qr(p)[0], np.nan)
    return thin.orthonormal(p) if finite(p) else np.full_like(p, np.nan)
