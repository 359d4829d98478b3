"""All elements, each with fewer bits: the codecs of `codec=`, with what they lose left to error feedback."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hocket.arguments import choices
from hocket.codecs import CODECS, Codec
from hocket.compression.bucket import Bucket
from hocket.compression.method import CHUNK, Array, Averaged, Kept, Method, Together, chunks, times
from hocket.errors import ArgumentError

PIECE = 1 << 19
"""Floats that go between hosts together."""
BY_NAME = {codec.name: codec for codec in CODECS}


def named(name: str | Codec) -> Codec:
    """The codec of blocks of this name."""
    if isinstance(name, Codec):
        return name
    if name not in BY_NAME:
        raise ArgumentError(f"{name!r} is no codec of blocks; {choices(name, BY_NAME)}")
    return BY_NAME[name]


def take(x: Array, codec: Codec, key: int = 0) -> Array:
    """Take off x what its encoding holds, which is returned; what is left of x is what the encoding loses."""
    wire = codec.encode(x, key)
    step = codec.block * (CHUNK // codec.block)
    for one in chunks(x.size, step):
        x[one] -= codec.decode(wire[codec.nbytes(one.start) : codec.nbytes(one.stop)], one.stop - one.start)
    return wire


class Coded(Method):
    """An allreduce by a codec, in two steps ("direct").  2n(p-1)/p bytes per rank, where n are those of the codec.

    Over several hosts of equally many ranks only the hosts' sums are encoded, in parts, one for each of its ranks:
    2n(h-1)/h bytes per host, where h are the hosts.

    Feedback keeps what this rank's encoding loses; what the sum's loses is lost.  A codec that rounds at random loses
    nothing in the mean, and is owed nothing.
    """

    def __init__(self, codec: str | Codec) -> None:
        self.codec = named(codec)
        self._teams: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()
        """Of a communicator over several hosts: its ranks on this host, and those at the same place of each host."""

    @property
    def name(self) -> str:
        return self.codec.name

    def average(self, comm: Any, vector: Array, result: Array, kept: Kept, seed: int) -> Averaged:
        flat, into = vector.reshape(-1), result.reshape(-1)
        if len(comm.groups) > 1 and len(set(map(len, comm.groups))) == 1:
            if comm not in self._teams:
                self._teams[comm] = comm.split(comm.host), comm.split(comm.local_rank)
            return self.between(*self._teams[comm], flat, into)
        comm.allreduce(flat, "avg", into, codec=self.codec, algorithm="direct")
        return Averaged({}, self._lose(flat))

    def between(self, here: Any, across: Any, vector: Array, result: Array) -> Averaged:
        """`average` over hosts; what the encoding of this rank's part of its host's sum loses is owed by this rank.

        In pieces: while one is between the hosts, the next is added up inside, and encoded.
        """
        begun, nbytes = [], 0
        for one in chunks(vector.size, PIECE):
            piece, counts = vector[one], self._dealt(one.stop - one.start, here.size)
            mine = slice(sum(counts[: here.rank]), sum(counts[: here.rank + 1]))
            part = here.reduce_scatterv(piece, counts)
            work = across.allreduce(part.copy(), codec=self.codec, algorithm="direct", async_op=True)
            begun.append((result[one], counts, mine, work))
            nbytes += self._lose(part)
            piece[...] = 0
            piece[mine] = part
        for into, counts, mine, work in begun:
            np.multiply(work.result(), np.float32(1 / (here.size * across.size)), out=into[mine])
            here.allgatherv(into[mine], counts, into)
        return Averaged({}, nbytes)

    def _dealt(self, count: int, size: int) -> list[int]:
        """Elements of each of so many ranks: whole blocks, but for the last ones."""
        each = -(-count // (size * self.codec.block)) * self.codec.block
        return [max(0, min(each, count - r * each)) for r in range(size)]

    def _lose(self, x: Array) -> int:
        """Leave of x what its encoding loses, which this rank owes.  Returns the bytes of the encoding."""
        # The plan of the allreduce encodes once more, in its own scratch, and shows nobody what it sends.
        if not self.codec.stochastic:
            return take(x, self.codec).nbytes
        x[...] = 0
        return self.codec.nbytes(x.size)

    def scatter(self, comm: Any, vector: Array, result: Array) -> Averaged:
        """Each rank adds up the others' encodings of its row, and its own row as it is: n(p-1)/p bytes per rank."""
        rows, own = vector.reshape(comm.size, -1), comm.rank
        came = comm.alltoall(rows, codec=self.codec)
        came[own] = rows[own]
        np.multiply(came.sum(0).reshape(result.shape), np.float32(1 / comm.size), out=result)
        rows[own] = 0
        nbytes = sum(self._lose(rows[r]) for r in range(comm.size) if r != own)
        return Averaged({}, nbytes)

    def gather(self, comm: Any, vector: Array, result: Array, kept: Kept) -> Averaged:
        """The changes, encoded; the first time all of it: (p-1) times a vector's bytes."""
        if "all" in kept:
            result[...] = kept["all"]
            changes = (vector - result[comm.rank]).reshape(1, -1)
            result += comm.allgather(changes, codec=self.codec).reshape(result.shape)
            nbytes = self.codec.nbytes(vector.size)
        else:
            comm.allgather(vector[None], result)
            nbytes = vector.nbytes
        return Averaged({"all": result.copy()}, nbytes)

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[Kept], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One call for all."""
        made = self.average(comm, vectors.flat, results.flat, {}, seeds[0])
        return [Averaged({}, made.nbytes * x.size // max(vectors.flat.size, 1)) for x in vectors.parts]


class DoubleSqueeze(Together):
    """A codec with error feedback on both sides: the owner of each part of the sum keeps what its encoding loses, too.

    2n(p-1)/p bytes per rank, where n are those of the codec.

    Source: Tang et al., "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-Pass Error-Compensated
    Compression", ICML 2019; the parts of the vector are dealt out to all ranks, instead of one server.
    """

    def __init__(self, codec: str | Codec) -> None:
        self.codec = named(codec)

    @property
    def name(self) -> str:
        return f"doublesqueeze:{self.codec.name}"

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[Kept], seeds: Sequence[int]
    ) -> list[Averaged]:
        """Two calls for all.  Row r is what rank r owns: of each vector a part."""
        codec, p = self.codec, comm.size
        each = [self._part(vector.size, p) for vector in vectors.parts]
        ends = np.cumsum([0, *each])
        rows = np.zeros((p, ends[-1]), np.float32)
        columns = [rows[:, begin:end] for begin, end in itertools.pairwise(ends)]
        for part, vector in zip(columns, vectors.parts, strict=True):
            _spread(part, vector)
        wire = take(rows.reshape(-1), codec, seeds[0] << 32 | comm.rank)
        for part, vector in zip(columns, vectors.parts, strict=True):
            _gather(vector, part)
        came = comm.alltoall(wire).reshape(p, -1)
        mine = codec.decode(came[0], ends[-1])
        for one in came[1:]:
            mine += codec.decode(one, ends[-1])
        mine *= np.float32(1 / p)
        owned = np.split(mine, ends[1:-1])
        for part, kept in zip(owned, kepts, strict=True):
            if "owned" in kept:
                part += kept["owned"]
        code = take(mine, codec, seeds[0] << 32 | comm.rank | 1 << 31)
        rows[...] = codec.decode(comm.allgather(code), rows.size).reshape(rows.shape)
        for column, result in zip(columns, results.parts, strict=True):
            _gather(result, column)
        of_block = codec.itemsize / codec.block
        return [Averaged({"owned": part.copy()}, int(p * part.size * of_block)) for part in owned]

    def rescaled(self, kept: Kept, factor: np.float32) -> Kept:
        return times(kept, "owned", factor)

    def redealt(self, kepts: Sequence[Kept], count: int, rank: int, size: int) -> Kept:
        if not all("owned" in kept for kept in kepts):
            return {}
        each = self._part(count, size)
        whole = np.zeros(size * each, np.float32)
        whole[:count] = np.concatenate([kept["owned"] for kept in kepts])[:count]
        return {"owned": whole[rank * each : (rank + 1) * each]}

    def _part(self, count: int, size: int) -> int:
        """Elements that each rank owns: whole blocks."""
        return -(-count // (size * self.codec.block)) * self.codec.block


def _spread(rows: Array, vector: Array) -> None:
    """Fill rows with a vector, one after the other; it may be shorter than they."""
    flat, each = vector.reshape(-1), rows.shape[1]
    for r in range(len(rows)):
        part = flat[r * each : (r + 1) * each]
        rows[r, : part.size] = part


def _gather(vector: Array, rows: Array) -> None:
    """Back again."""
    flat, each = vector.reshape(-1), rows.shape[1]
    for r in range(len(rows)):
        part = flat[r * each : (r + 1) * each]
        part[...] = rows[r, : part.size]
