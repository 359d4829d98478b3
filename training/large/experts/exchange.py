"""The way of rows between ranks: straight, or in two steps, so that few messages cross from host to host.

    Straight      a message from each rank to each: (H-1) L of a rank cross, with H hosts of L ranks
    TwoSteps      inside the host to the rank of the right number, then between hosts: H-1 of a rank cross

Bytes that cross are the same; those inside a host grow.  It pays where rows are few and latencies long.
Source: He et al., "FasterMoE", PPoPP 2022; Nie et al., "HetuMoE", arXiv 2203.14685 (hierarchical all-to-all).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.memory import moved
from hocket.errors import ArgumentError
from hocket.training.flat import Array
from hocket.training.large.agreeing import agree
from hocket.training.large.mesh.axis import Axis


class Straight:
    """`comm.alltoallv`."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm

    def __call__(self, rows: Array, to: Sequence[int], of: Sequence[int]) -> Array:
        """The first to[0] rows go to rank 0, ...; the result has of[0] rows from rank 0, ..."""
        return self.comm.alltoallv(rows, to, of)


class TwoSteps:
    """The same, where every host has as many ranks of `comm`; ArgumentError, on all ranks, if not.

    An axis's codec counts between hosts alone.
    """

    def __init__(self, comm: Any) -> None:
        places = agree(comm, "Experts", dict, [comm.host, comm.local_rank])
        hosts = sorted({host for host, _ in places})
        here = [[rank for rank, (host, _) in enumerate(places) if host == each] for each in hosts]
        if len({len(ranks) for ranks in here}) > 1:
            many = ", ".join(str(len(ranks)) for ranks in here)
            raise ArgumentError(f"hierarchical=True needs the same number of ranks on each host; the hosts have {many}")
        self.at = np.array(here)
        """The rank by host and number in it."""
        mine = next(ranks for ranks in here if comm.rank in ranks)
        self.inside = comm.split(here.index(mine), comm.rank)
        between = comm.split(mine.index(comm.rank), comm.rank)
        axis = isinstance(comm, Axis)
        self.between = Axis(comm.mesh, comm.name, between, comm.transport, comm.codec) if axis else between

    def __call__(self, rows: Array, to: Sequence[int], of: Sequence[int]) -> Array:
        """The first to[0] rows go to rank 0, ...; the result has of[0] rows from rank 0, ..."""
        theirs = np.asarray(to)[self.at.T]  # by number in a host, then by host
        rows = rows[moved(_blocks(to, self.at.T.ravel()), rows)]
        mine = self.inside.alltoall(np.ascontiguousarray(theirs))
        rows = self.inside.alltoallv(rows, theirs.sum(1).tolist(), mine.sum(1).tolist())
        order = np.arange(mine.size).reshape(mine.shape).T.ravel()
        rows = rows[moved(_blocks(mine.ravel(), order), rows)]
        come = np.asarray(of)[self.at]
        rows = self.between.alltoallv(rows, mine.sum(0).tolist(), come.sum(1).tolist())
        return rows[moved(_blocks(come.ravel(), np.argsort(self.at.ravel())), rows)]


def _blocks(counts: Any, order: Any) -> Array:
    """The indices of rows in blocks of such counts, with the blocks in this order.

    >>> _blocks([2, 1, 3], [2, 0, 1]).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    parts = [np.arange(ends[each] - counts[each], ends[each]) for each in order]
    return np.concatenate(parts) if parts else np.arange(0)
