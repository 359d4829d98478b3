"""A sum of sparse vectors of which all ranks know how many elements each has: on a GPU, where nobody reads a count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hocket.compression.memory import Array, cast, chosen, namespace, size
from hocket.errors import ArgumentError

LARGEST = (1 << 31) - 1
"""The last index: 4 bytes."""


def summed(comm: Any, indices: Sequence[Array], flat: Array, out: Array, codec: str | None) -> Array:
    """Make `out` the sum of all ranks' flat[indices], as many on each rank; those of one index in rank order.

    Returns the values as the others get them.  8 bytes to each other rank for a pair, 6 with a codec; an allreduce of
    vectors where that is less.  Nothing waits for the GPU.
    """
    xp = namespace(flat)
    if size(flat) > LARGEST:
        raise ArgumentError(f"on a GPU a vector of pairs has at most {LARGEST} elements, got {size(flat)}: cut it")
    places = xp.concatenate(list(indices))
    halves = None if codec is None else halved(flat[places], codec)
    values = flat[places] if halves is None else widened(halves, codec)
    out[...] = 0
    k = size(places)
    if comm.size * k * (8 if codec is None else 6) >= 2 * flat.nbytes:
        out[places] = values
        comm.allreduce(out)
        return values
    told = values.view(xp.int16) if halves is None else halves
    spare = told[: size(told) % 2]  # so that each rank's places begin at a multiple of their bytes
    for row in comm.allgather(xp.concatenate([cast(places, "int32").view(xp.int16), told, spare])[None]):
        came = row[2 * k : 2 * k + size(told)]
        out[cast(row[: 2 * k].view(xp.int32), "int64")] += (
            came.view(xp.float32) if codec is None else widened(came, codec)
        )
    return values


def halved(values: Array, codec: str | None) -> Array:
    """float32 as the bits of float16 or bfloat16, int16."""
    xp = namespace(values)
    if codec == "fp16":
        return cast(values, "float16").view(xp.int16)
    bits = values.view(xp.int32)
    nearest = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16  # ties to even
    return cast(chosen(values == values, nearest, 0x7FC0), "int16")


def widened(halves: Array, codec: str | None) -> Array:
    xp = namespace(halves)
    if codec == "fp16":
        return cast(halves.view(xp.float16), "float32")
    return (cast(halves, "int32") << 16).view(xp.float32)
