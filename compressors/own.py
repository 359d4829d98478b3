"""A codec of the user's own: two functions on arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array
from hocket.compression.method import Averaged, Method, MethodState
from hocket.errors import ArgumentError

Encode = Callable[[Array], Array]
Decode = Callable[[Array, int], Array]
NOT_FINITE = -1
"""Takes the place of a length, as the user's codec need not have a NaN: integers have none."""


class Own(Method):
    """Averages what `decode` makes of all ranks' `encode`d vectors; error feedback keeps what this rank's loses.

    `encode(x)`: x is float32 of one dimension, which it does not change; it returns an array of any dtype and length.
    `decode(wire, count)`: of the bytes of that, a uint8 array, it makes `count` float32 again, the same on all ranks.
    `name`: in words, with parameters, as states are loaded by equal names only.

    A vector with a NaN or an infinity is not encoded; the result is NaN on all ranks.

    (p-1)n bytes per rank, where n are those of the encoded vector, and p decodings: for few ranks, and to try a codec.
    Raises ArgumentError, on all ranks, if `decode` makes something else than `count` numbers.

    >>> import hocket, numpy as np
    >>> from hocket.compression import Compressor, Own
    >>> halves = Own("halves", lambda x: x.astype(np.float16), lambda wire, count: wire.view(np.float16))
    >>> def once(comm):
    ...     return Compressor(comm, halves).allreduce(np.float32([comm.rank, 0.1]), "w").tolist()
    >>> hocket.local_world(2).run(once)[0]
    [0.5, 0.0999755859375]
    """

    def __init__(self, name: str, encode: Encode, decode: Decode) -> None:
        if not callable(encode) or not callable(decode):
            raise ArgumentError(f"codec {name!r}: encode and decode must be functions")
        self._name, self._encode, self._decode = name, encode, decode

    @property
    def name(self) -> str:
        return self._name

    host = "how long what encode returns is must be told to the others"

    def average(self, comm: Any, vector: Array, result: Array, kept: MethodState, seed: int) -> Averaged:
        flat = vector.reshape(-1)
        wire, length = np.empty(0, np.uint8), NOT_FINITE
        if not np.isnan(flat).any():  # an infinity has made it NaN
            wire = np.ascontiguousarray(self._encode(flat)).reshape(-1).view(np.uint8)
            length = wire.size
        lengths = comm.allgather(np.array([length])).tolist()
        if NOT_FINITE in lengths:
            result[...] = np.nan
            return Averaged({}, 0, finite=False)
        parts = np.split(comm.allgatherv(wire, lengths), np.cumsum(lengths)[:-1])
        decoded = [self._floats(part, flat.size) for part in parts]
        flat -= decoded[comm.rank]
        np.multiply(sum(decoded[1:], decoded[0]).reshape(result.shape), np.float32(1 / comm.size), out=result)
        return Averaged({}, wire.size)

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """One call for all."""
        whole = self.average(comm, vectors.flat, results.flat, {}, seeds[0]).nbytes
        return [Averaged({}, whole * part.size // max(vectors.flat.size, 1)) for part in vectors.parts]

    def _floats(self, wire: Array, count: int) -> Array:
        decoded = np.asarray(self._decode(wire, count))
        if decoded.size != count:
            raise ArgumentError(f"codec {self._name!r}: decode returned {decoded.size} numbers; expected {count}")
        return decoded.reshape(-1).astype(np.float32, copy=False)
