"""Codes of different lengths: what is often zero costs little more than a bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.codecs import WHOLE, Codec, restore, shorten
from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array
from hocket.compression.method import Averaged, MethodState, Together
from hocket.errors import ArgumentError


class Elias(Together):
    """A codec of whole numbers (QSGD, TernGrad, Int), with Elias' omega codes for them and for the gaps between them.

    Every rank gets all ranks' codes, as their lengths differ, and adds them up: n(p-1) bytes per rank, where n are
    those of the codes.  It pays where most numbers are zero, as those of QSGD with few levels and norm "l2" are.  What
    the codec rounds to nearest is owed; what it rounds at random is not.

    Source: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017.
    """

    def __init__(self, codec: Codec) -> None:
        if not isinstance(codec, Codec) or codec.code != WHOLE:
            raise ArgumentError(f"Elias needs a codec of whole numbers: QSGD, TernGrad or Int; got {codec}")
        self.codec = codec

    @property
    def name(self) -> str:
        return f"elias:{self.codec.name}"

    host = "how long its codes are is known when they are made"

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """Two calls for all: the lengths, and the codes."""
        codec, flat, p = self.codec, vectors.flat, comm.size
        count = -(-flat.size // codec.block)
        mine = shorten(self._taken(flat, seeds[0] << 32 | comm.rank), codec)
        lengths = comm.allgather(np.array([mine.size])).tolist()
        every = np.split(comm.allgatherv(mine, lengths), np.cumsum(lengths)[:-1])
        total = results.flat
        total[...] = 0
        for one in every:
            total += codec.decode(restore(one, codec, count), flat.size)
        total *= np.float32(1 / p)
        return [Averaged({}, mine.size * part.size // max(flat.size, 1)) for part in vectors.parts]

    def _taken(self, x: Array, key: int) -> Array:
        """The elements of x, of which stays what is owed."""
        if not self.codec.stochastic:
            return self.codec.encode(x, key, (None, x))
        wire = self.codec.encode(x, key)
        x[...] = 0
        return wire
