"""Sufficient factors: the gradient of a fully connected layer as the two matrices whose product it is.

The gradient of a weight of M x N after K samples is u^T v: u of K x M goes in, v of K x N comes back.  Ranks send u and
v instead, and each multiplies all of them: law: the sum of all ranks' products is the dense gradient.

Numbers that a rank sends and receives, with P ranks: factors 2 K (P-1) (M+N); the dense gradient over P servers, which
is what an allreduce does, 2 M N (2P-2) / P.  The smaller one is chosen, for each layer: HybComm.
Memory: the factors of all ranks, P K (M+N).

Source: Zhang et al., "Poseidon: an efficient communication architecture for distributed deep learning on GPU
clusters", USENIX ATC 2017, algorithm 1; Xie et al., "Lighter-communication distributed machine learning via sufficient
factor broadcasting", UAI 2016.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hocket.training.flat import Array


class Choice(NamedTuple):
    """Numbers that a rank sends and receives for a layer."""

    factors: float
    dense: float

    @property
    def way(self) -> str:
        return "factors" if self.factors < self.dense else "dense"


def costs(m: int, n: int, k: float, workers: int, servers: int | None = None) -> Choice:
    """The costs of a layer of m x n, with k samples on average on each of so many workers; servers: as many, as in an
    allreduce.

    >>> costs(25088, 4096, 32, workers=8).way, costs(4096, 1000, 1024, workers=8).way      # VGG's first one; its last
    ('factors', 'dense')
    """
    p1, p2 = workers, servers or workers
    return Choice(2.0 * k * (p1 - 1) * (m + n), 2.0 * m * n * (p1 + p2 - 2) / p2)


def average(comm: Any, u: Array, v: Array, way: str | None = None) -> Array:
    """The average of all ranks' u^T v, on all ranks; u of (K, M), v of (K, N).  Ranks may have other K.

    Each rank counts alike, as in an allreduce of gradients, whatever its K.  Cost: an allgather of K beside it.  `way`:
    "factors" or "dense" instead of the cheaper one.  By factors, ranks multiply by themselves: they hold the same bits
    where their CPUs and their BLAS are the same.

    >>> import hocket
    >>> u, v = np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)
    >>> hocket.local_world(2).run(lambda comm: average(comm, comm.rank * u, v, "factors")[0].tolist())[1]
    [1.0, 1.0]
    """
    m, n = u.shape[1], v.shape[1]
    each = comm.allgather(np.array([len(u)])).tolist()
    if (way or costs(m, n, sum(each) / comm.size, comm.size).way) == "dense":
        return comm.allreduce(np.ascontiguousarray(u.T @ v), "avg")
    both = comm.allgatherv(np.concatenate([u, v], 1), each)
    product = both[:, :m].T @ both[:, m:]
    product /= comm.size
    return product
