"""All elements, each with fewer bits: the codecs of `codec=`, with what they lose left to error feedback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hocket.arguments import choices
from hocket.compression.method import Array, Averaged, Kept, Method, joined, parted
from hocket.errors import ArgumentError
from hocket.kernels.codecs import CODECS, Codec
from hocket.kernels.cpu import reduce

BY_NAME = {codec.name: codec for codec in CODECS}


def named(name: str | Codec) -> Codec:
    """The codec of blocks of this name."""
    if isinstance(name, Codec):
        return name
    if name not in BY_NAME:
        raise ArgumentError(f"{name!r} is no codec of blocks; {choices(name, BY_NAME)}")
    return BY_NAME[name]


def encode(x: Array, codec: Codec, key: int = 0) -> Array:
    """Its bytes on the wire.  `key`: of the random numbers by which some codecs round."""
    wire = np.empty(-(-x.size // codec.block) * codec.itemsize, np.uint8)
    reduce.encode_array(wire, x, codec, key)
    return wire


def decode(wire: Array, codec: Codec, count: int) -> Array:
    """The first `count` floats of it."""
    x = np.empty(wire.size // codec.itemsize * codec.block, np.float32)
    reduce.decode_array(x, wire, codec)
    return x[:count]


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

    def average(self, comm: Any, vector: Array, kept: Kept, seed: int) -> Averaged:
        if len(comm.groups) > 1 and len(set(map(len, comm.groups))) == 1:
            if comm not in self._teams:
                self._teams[comm] = comm.split(comm.host), comm.split(comm.local_rank)
            return self.between(*self._teams[comm], vector)
        # The plan of the allreduce encodes once more, in its own scratch, and shows nobody what it sends.
        wire, sent = encode(vector.reshape(-1), self.codec), vector
        if not self.codec.stochastic:
            sent = decode(wire, self.codec, vector.size).reshape(vector.shape)
        result = np.empty_like(vector)
        comm.allreduce(vector, "avg", result, codec=self.codec, algorithm="direct")
        return Averaged(result, sent, {}, wire.nbytes)

    def between(self, here: Any, across: Any, vector: Array) -> Averaged:
        """`average` over hosts; what the encoding of this rank's part of its host's sum loses is owed by this rank."""
        each = -(-vector.size // (here.size * self.codec.block)) * self.codec.block
        padded = np.zeros(here.size * each, np.float32)
        padded[: vector.size] = vector.reshape(-1)
        first = here.rank * each
        held = max(0, min(each, vector.size - first))  # of the last parts less is the vector's
        mine = here.reduce_scatter(padded)[:held]
        wire, sent = encode(mine, self.codec), vector
        if not self.codec.stochastic:
            sent = vector.copy()
            sent.reshape(-1)[first : first + held] -= mine - decode(wire, self.codec, held)
        padded[first : first + held] = across.allreduce(mine, codec=self.codec, algorithm="direct")
        whole = here.allgather(padded[first : first + each])[: vector.size] * np.float32(1 / (here.size * across.size))
        return Averaged(whole.reshape(vector.shape), sent, {}, wire.nbytes)

    def average_all(
        self, comm: Any, vectors: Sequence[Array], kepts: Sequence[Kept], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One call for all."""
        made = self.average(comm, joined(vectors), {}, seeds[0])
        parts = zip(parted(made.result, vectors), parted(made.sent, vectors), vectors, strict=True)
        return [Averaged(result, sent, {}, made.nbytes * x.size // max(made.sent.size, 1)) for result, sent, x in parts]


class DoubleSqueeze(Method):
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

    def average(self, comm: Any, vector: Array, kept: Kept, seed: int) -> Averaged:
        codec, p = self.codec, comm.size
        each = self._part(vector.size, p)
        padded = np.zeros(p * each, np.float32)
        padded[: vector.size] = vector.reshape(-1)
        wire = encode(padded, codec, seed << 32 | comm.rank)
        came = comm.alltoall(wire).reshape(p, -1)
        mine = decode(came[0], codec, each)
        for one in came[1:]:
            mine += decode(one, codec, each)
        mine *= np.float32(1 / p)
        if "owned" in kept:
            mine += kept["owned"]
        code = encode(mine, codec, seed << 32 | comm.rank | 1 << 31)
        owned = mine - decode(code, codec, each)
        result = decode(comm.allgather(code), codec, p * each)[: vector.size]
        sent = decode(wire, codec, vector.size)
        shape = vector.shape
        return Averaged(result.reshape(shape), sent.reshape(shape), {"owned": owned}, wire.nbytes)

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
