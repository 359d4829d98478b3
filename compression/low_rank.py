"""Two thin matrices instead of a wide one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.method import Array, Averaged, Kept, Method
from hocket.errors import ArgumentError


class PowerSGD(Method):
    """One step of a power iteration, from where the last call ended: 8r(a + b)(p-1)/p bytes per rank for a x b.

    Exact where the average has no more than this rank.  Arrays of one dimension, and those that two thin matrices would
    not make smaller, are averaged as they are.  Every rank multiplies for itself, so the same bits on all ranks want
    one linear algebra library and one kind of CPU.

    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS
    2019.
    """

    def __init__(self, rank: int) -> None:
        if rank < 1:
            raise ArgumentError(f"PowerSGD wants a rank of at least 1, got {rank!r}")
        self.rank = rank

    @property
    def name(self) -> str:
        return f"powersgd:{self.rank}"

    def average(self, comm: Any, vector: Array, kept: Kept, seed: int) -> Averaged:
        rows = vector.shape[0] if vector.ndim > 1 else 1
        matrix = vector.reshape(rows, -1) if vector.size else vector.reshape(rows, 0)
        columns = matrix.shape[1]
        if self.rank * (rows + columns) >= vector.size:
            result = comm.allreduce(vector.copy(), "avg")
            return Averaged(result, vector, {}, vector.nbytes)
        q = kept.get("q")
        if q is None:
            q = np.random.Generator(np.random.Philox(seed)).standard_normal((columns, self.rank), np.float32)
        p = comm.allreduce(matrix @ q, "avg")
        if not np.isfinite(p).all():  # the same on all ranks
            result = np.full_like(vector, np.nan)
            return Averaged(result, result, {}, p.nbytes + q.nbytes)
        p = np.ascontiguousarray(np.linalg.qr(p)[0])
        q = comm.allreduce(np.ascontiguousarray(matrix.T @ p), "avg")
        result = (p @ q.T).reshape(vector.shape)
        # A direction that met nothing stays as it is: multiplied by zero it would never find anything again.
        lost = ~np.abs(q).any(0)
        kept = {"q": np.where(lost, np.eye(columns, self.rank, dtype=np.float32), q)}
        return Averaged(result, result, kept, p.nbytes + q.nbytes)

    def redealt(self, kepts: Sequence[Kept], count: int, rank: int, size: int) -> Kept:
        return kepts[0]
