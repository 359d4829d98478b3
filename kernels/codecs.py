"""The codec table: what a block of float32 may be on the wire, where that is no dtype.

The kinds are those of kernels/cpu/codec.h; kernels/cpu/codec_*.h have their laws, gpu/codec.cuh runs them on a GPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import DTYPES

WHOLE, FP8, SIGN, ONEBIT, NATURAL, F16, BF16, EXACT, SUMS, EXTREMES, LOSSLESS = range(11)
MAX, L2 = range(2)


class Codec(NamedTuple):
    """`block` float32 become one element of `itemsize` bytes.  Its sum decodes, adds and encodes.

    hocket.compression makes them, checked.  Two are the same on the wire if they are equal.

    >>> import numpy as np
    >>> from hocket.compression import Int8
    >>> codec, x = Int8(), np.linspace(-1, 1, 300, dtype=np.float32)
    >>> wire = codec.encode(x)
    >>> wire.size == codec.nbytes(300), float(abs(codec.decode(wire, 300) - x).max()) < 1 / 127
    (True, True)
    """

    name: str
    """In words, with the parameters that are not the usual ones; so ranks whose names are equal have equal codecs."""
    code: int
    block: int
    itemsize: int
    bits: int = 8
    levels: int = 0
    norm: int = MAX
    clip: float = 0.0
    stochastic: bool = False
    seed: int = 0
    dtype: int = 0
    """The dtype's code, of exact sums (kernels/exact/) ..."""
    words: int = 0
    base: int = 0
    """... the words of a wide number, and the exponent of its last bit ..."""
    rows: int = 0
    stride: int = 0
    """... the rows of x, which are added too, and the bytes from one to the next ..."""
    divisor: float = 0.0
    """... and what the sum is divided by, before it is rounded; 0: by nothing."""

    def __str__(self) -> str:
        return self.name

    @property
    def width(self) -> int:
        """Bytes of one of the floats that it encodes."""
        return DTYPES[self.dtype].itemsize if self.dtype else 4

    def nbytes(self, count: int) -> int:
        """Bytes of `count` floats on the wire.  The last block may be short; its element is not."""
        return -(-count // self.block) * self.itemsize

    def encode(
        self, x: np.ndarray[Any, Any], key: int = 0,
        residual: tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any]] | None = None,
    ) -> np.ndarray[Any, Any]:  # fmt: skip
        """The bytes of a contiguous float32 array, as a new uint8 array.

        `key`: of the random numbers, if it rounds at random; give each call another one.  `residual`: (before, after),
        as in `Communicator.allreduce`: x + before is encoded, and `after`, which may be x, becomes what that loses.
        """
        wire = np.empty(self.nbytes(x.size), np.uint8)
        reduce.encode_array(wire, x, self, key, residual)
        return wire

    def decode(self, wire: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
        """The `count` floats that `encode` was given, as a new float32 array of one dimension.

        Raises ArgumentError if `wire` is not a contiguous uint8 array of nbytes(count) elements.
        """
        x = np.empty(count, np.float32)
        reduce.decode_array(x, wire, self)
        return x


CODECS: tuple[Codec, ...] = (
    Codec("int8", WHOLE, 256, 260, 8, 127),
    Codec("fp8", FP8, 256, 260),
    Codec("int4", WHOLE, 128, 68, 4, 7),
    Codec("sign", SIGN, 256, 36, 1),
)
"""Codecs that have a name of their own."""
PACKED = {n: Codec("lossless", LOSSLESS, 1, size) for n, size in (("float32", 4), ("float16", 2), ("bfloat16", 2))}
"""By dtype: the same bits in fewer bytes (kernels/exact/lossless.h)."""
HALVES = {"float16": Codec("fp16", F16, 128, 260, 16), "bfloat16": Codec("bf16", BF16, 64, 128, 16)}
"""The same dtypes as codecs, for calls that encode only in some of their steps; float16, with a scale, for all sums."""
HALF_NAMES = tuple(codec.name for codec in HALVES.values())
