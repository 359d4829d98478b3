"""The codec table: what a block of float32 may be on the wire, where that is no dtype.

The codes are those of kernels/cpu/codec.h, and kernels/cpu/blocks.h has the laws.
"""

from __future__ import annotations

from typing import NamedTuple


class Codec(NamedTuple):
    """One row: `block` float32 become one element of `itemsize` bytes.  Its sum decodes, adds and encodes."""

    code: int
    name: str
    block: int
    itemsize: int

    def __str__(self) -> str:
        return self.name


CODECS: tuple[Codec, ...] = (Codec(0, "int8", 256, 260), Codec(1, "fp8", 256, 260), Codec(2, "int4", 128, 68))
