"""All elements, each with fewer bits: the codecs of `codec=`, with what they lose left to error feedback."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hocket.arguments import choices
from hocket.codecs import CODECS, Codec
from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array, copied, empty, namespace, size, zeros
from hocket.compression.method import Averaged, Method, MethodState, Together, single, times
from hocket.errors import ArgumentError
from hocket.extending import hierarchical

Groups = tuple[tuple[int, ...], ...]
BY_NAME = {codec.name: codec for codec in CODECS}


def block_codec(name: str | Codec) -> Codec:
    """The codec of blocks of this name."""
    if isinstance(name, Codec):
        return name
    if name not in BY_NAME:
        raise ArgumentError(f"{name!r} is not a codec of blocks; {choices(name, BY_NAME)}")
    return BY_NAME[name]


@lru_cache(maxsize=64)
def _between(groups: Groups) -> Any:
    """Hosts' sums go straight to the rank that adds them up, as those of ranks do in "direct"."""
    return hierarchical("allreduce", groups, outer="direct")


class Coded(Method):
    """An allreduce by a codec, in two steps ("direct").  2n(p-1)/p bytes per rank, where n are those of the codec.

    Over several hosts only the hosts' sums are encoded, in parts, one for each rank of the smallest host:
    2n(h-1)/h bytes per host, where h are the hosts.

    Feedback keeps what the encoding of this rank's vector, or of its part of its host's sum, loses.  The error of
    encoding the sum of all is not fed back.  A codec that rounds at random loses nothing in the mean, so it has none.
    """

    def __init__(self, codec: str | Codec) -> None:
        self.codec = block_codec(codec)

    @property
    def name(self) -> str:
        return self.codec.name

    @property
    def feeds(self) -> bool:
        return not self.codec.stochastic

    def average(self, comm: Any, vector: Array, result: Array, kept: MethodState, seed: int) -> Averaged:
        flat = vector.reshape(-1)
        self._allreduce(comm, flat, result.reshape(-1), self._left(flat))
        if self.codec.stochastic:
            flat[...] = 0
        return Averaged({}, self.codec.nbytes(size(flat)))

    def feed(self, comm: Any, bucket: Bucket, before: Array | None, after: Array) -> list[Averaged]:
        self._allreduce(comm, bucket.flat, None, (before, after))
        return self._shares(bucket)

    def _allreduce(self, comm: Any, x: Array, out: Array | None, residual: tuple[Array | None, Array] | None) -> None:
        algorithm = "direct" if len(comm.groups) == 1 else _between(comm.groups)
        comm.allreduce(x, "avg", out, codec=self.codec, algorithm=algorithm, residual=residual)

    def _left(self, x: Array) -> tuple[None, Array] | None:
        """The residual of a call with x: x becomes what its encoding loses."""
        return None if self.codec.stochastic else (None, x)

    def _shares(self, bucket: Bucket) -> list[Averaged]:
        """The bytes of each vector among those of all."""
        count = size(bucket.flat)
        whole = self.codec.nbytes(count)
        return [Averaged({}, whole * size(part) // max(count, 1)) for part in bucket.parts]

    def scatter(self, comm: Any, vector: Array, result: Array) -> Averaged:
        """Each rank adds up the others' encodings of its row, and its own row as it is: n(p-1)/p bytes per rank."""
        rows, own = vector.reshape(comm.size, -1), comm.rank
        mine = copied(rows[own])
        came = comm.alltoall(rows, codec=self.codec, residual=self._left(rows))
        came[own] = mine
        total = came[0]
        for row in came[1:]:
            total += row
        namespace(total).multiply(total.reshape(result.shape), single(1 / comm.size), out=result)
        rows[slice(None) if self.codec.stochastic else own] = 0
        return Averaged({}, (comm.size - 1) * self.codec.nbytes(rows.shape[1]))

    def gather(self, comm: Any, vector: Array, result: Array, kept: MethodState) -> Averaged:
        """The changes, encoded; the first time all of it: (p-1) times a vector's bytes."""
        if "all" in kept:
            result[...] = kept["all"]
            changes = (vector - result[comm.rank]).reshape(1, -1)
            result += comm.allgather(changes, codec=self.codec).reshape(result.shape)
            nbytes = self.codec.nbytes(size(vector))
        else:
            comm.allgather(vector[None], result)
            nbytes = vector.nbytes
        return Averaged({"all": copied(result)}, nbytes)

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One call for all."""
        self.average(comm, vectors.flat, results.flat, {}, seeds[0])
        return self._shares(vectors)


class DoubleSqueeze(Together):
    """A codec with error feedback on both sides: the owner of each part of the sum keeps what its encoding loses, too.

    2n(p-1)/p bytes per rank, where n are those of the codec.

    Source: Tang et al., "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-Pass Error-Compensated
    Compression", ICML 2019; the parts of the vector are dealt out to all ranks, instead of one server.
    """

    def __init__(self, codec: str | Codec) -> None:
        self.codec = block_codec(codec)
        self.block = self.codec.block

    @property
    def name(self) -> str:
        return f"doublesqueeze:{self.codec.name}"

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One call for all.  Row r is what rank r owns: of each vector a part."""
        p = comm.size
        each = [self._part(size(vector), p) for vector in vectors.parts]
        ends = [0, *itertools.accumulate(each)]
        rows = zeros(vectors.flat, (p, ends[-1]))
        came, owned = empty(rows, rows.shape), empty(rows, rows.shape)
        columns = [slice(begin, end) for begin, end in itertools.pairwise(ends)]
        for column, vector, kept in zip(columns, vectors.parts, kepts, strict=True):
            _spread(rows[:, column], vector)
            owned[comm.rank, column] = kept.get("owned", 0)
        owned[comm.rank] *= single(p)  # of the sum
        if p == 1:  # whose sum is not encoded once more
            rows += owned
            owned[...] = 0
        of_one = self._sum(comm, rows, came, owned)
        owned[comm.rank] *= single(1 / p)
        for column, vector, result in zip(columns, vectors.parts, results.parts, strict=True):
            _gather(vector, rows[:, column])
            _gather(result, came[:, column])
        return [
            Averaged({"owned": copied(owned[comm.rank, column])}, int(p * part * of_one))
            for column, part in zip(columns, each, strict=True)
        ]

    def _sum(self, comm: Any, rows: Array, came: Array, owned: Array) -> float:
        """Make `came` the average of all ranks' rows; these, and in `owned` this rank's, become what is left of them.

        What `owned` had is in the sum.  Returns the bytes of an element on the wire.
        """
        comm.allreduce(
            rows.reshape(-1), "avg", came.reshape(-1), codec=self.codec, algorithm="direct",
            residual=(None, rows.reshape(-1)), owner_residual=owned.reshape(-1),
        )  # fmt: skip
        return self.codec.itemsize / self.codec.block

    def rescaled(self, kept: MethodState, factor: float) -> MethodState:
        return times(kept, "owned", factor)

    def redealt(self, kepts: Sequence[MethodState], count: int, rank: int, size: int) -> MethodState:
        if not all("owned" in kept for kept in kepts):
            return {}
        each = self._part(count, size)
        whole = np.zeros(size * each, np.float32)
        whole[:count] = np.concatenate([kept["owned"] for kept in kepts])[:count]
        return {"owned": whole[rank * each : (rank + 1) * each]}

    def _part(self, count: int, size: int) -> int:
        """Elements that each rank owns: whole blocks."""
        return -(-count // (size * self.block)) * self.block


def _spread(rows: Array, vector: Array) -> None:
    """Fill rows with a vector, one after the other; it may be shorter than they."""
    flat, each = vector.reshape(-1), rows.shape[1]
    for r in range(len(rows)):
        part = flat[r * each : (r + 1) * each]
        rows[r, : len(part)] = part


def _gather(vector: Array, rows: Array) -> None:
    """Back again."""
    flat, each = vector.reshape(-1), rows.shape[1]
    for r in range(len(rows)):
        part = flat[r * each : (r + 1) * each]
        part[...] = rows[r, : len(part)]
