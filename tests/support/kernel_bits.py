"""The bits of the CPU's kernels, a line each: for whoever compares two machines.

    PYTHONPATH=src python tests/support/kernel_bits.py > here.txt

Every dtype with every op, every codec (encoded, decoded, summed, with a residual), scaling, lossless packing, Elias'
codes and the digest, of values that any bits make: also NaN, infinities and numbers that are nearly zero.  A NaN that
was computed is one NaN, as processors differ in its sign.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from hocket.compression import FP8, QSGD, Int, Int4, Int8, Natural, OneBit, Sign, TernGrad
from hocket.kernels.codecs import CODECS, HALVES, PACKED, Codec
from hocket.kernels.cpu import elias, reduce
from hocket.kernels.digest import digest
from hocket.kernels.dtypes import DTYPES
from hocket.kernels.ops import OPS

Array = np.ndarray[Any, Any]
COUNT = 1003
OTHERS = (
    OneBit(), Natural(), Natural(rounding="nearest"), Int8(64), FP8(1024), Sign(64),
    *(Int(bits) for bits in (2, 3, 5, 6, 7)), Int8(rounding="stochastic"), Int4(rounding="stochastic"), QSGD(1),
    QSGD(7, 128), QSGD(22, norm="l2"), QSGD(127), TernGrad(), TernGrad(1.0),
)  # fmt: skip
RANGES = {"any": (0, 256), "usual": (112, 144), "small": (0, 24)}
"""Exponents of float32: of all bits, of what gradients are, and of numbers that are nearly zero."""


def numpy_of(name: str, numpy: str) -> np.dtype[Any]:
    first, _, second = name.partition("_")
    if not numpy:
        return np.dtype([("value", first), ("index", second)])
    return np.dtype(getattr(ml_dtypes, numpy, numpy))


def whole(seed: int, nbytes: int) -> Array:
    """Bytes that are the same on every machine."""
    return np.frombuffer(hashlib.shake_128(seed.to_bytes(8, "little")).digest(nbytes), np.uint8).copy()


def values(dtype: np.dtype[Any], seed: int) -> Array:
    bits = whole(seed, COUNT * dtype.itemsize)
    return (bits & 1 if dtype == np.bool_ else bits).view(dtype)


def floats(seed: int, exponents: tuple[int, int]) -> Array:
    bits, (low, high) = whole(seed, 4 * COUNT).view(np.uint32), exponents
    exponent = low + (bits >> 23 & 255) % (high - low)
    return (bits & 0x807FFFFF | exponent << 23).view(np.float32)


def told(x: Array) -> str:
    """A digest of the bits, with one NaN for all."""
    x = x.copy()
    for name in x.dtype.names or [None]:
        part = x if name is None else x[name]
        if part.dtype.kind == "c":
            part = part.view(part.real.dtype)
        if part.dtype.kind in "fV" and part.dtype.names is None:
            part[part != part] = np.nan
    return hashlib.sha256(x.tobytes()).hexdigest()[:16]


def reductions() -> Iterator[tuple[str, Array]]:
    for dtype, op, ways in itertools.product(DTYPES, OPS, (2, 3, 5)):
        if dtype.kind not in op.kinds:
            continue
        kind = numpy_of(dtype.name, dtype.numpy)
        inputs = [values(kind, 100 * dtype.code + i) for i in range(ways)]
        out = np.empty_like(inputs[0])
        reduce.reduce_arrays(out, inputs, op.name)
        yield f"{op.name} {dtype.name} of {ways}", out
    for dtype in DTYPES:
        if dtype.kind in ("float", "complex"):
            x = values(numpy_of(dtype.name, dtype.numpy), dtype.code)
            out = np.empty_like(x)
            reduce.scale_array(out, x, 1 / 3)
            yield f"scale {dtype.name}", out


def coded(codec: Codec, range_: str) -> Iterator[tuple[str, Array]]:
    x = [floats(i, RANGES[range_]) for i in range(3)]
    name = f"{codec} {range_}"
    wires = [codec.encode(each, 7) for each in x]
    summed, left = np.empty_like(wires[0]), np.empty_like(x[0])
    reduce.fold_arrays(summed, wires, codec, COUNT, 9)
    made = {"encode": wires[0], "sum": summed, "encode with a residual": codec.encode(x[0], 7, (x[1], left))}
    for what, wire in made.items():
        decoded = codec.decode(wire, COUNT)
        yield f"{what} {name}, decoded", decoded
        starts = np.arange(0, COUNT, codec.block)
        odd = np.logical_or.reduceat(decoded != decoded, starts)
        wire.reshape(len(starts), codec.itemsize)[odd] = 0  # the sign of a NaN is somewhere in it
        yield f"{what} {name}", wire
    yield f"residual {name}", left


def packed() -> Iterator[tuple[str, Array]]:
    for name, codec in PACKED.items():
        for range_ in RANGES:
            x = floats(5, RANGES[range_])
            if name != "float32":
                half = numpy_of(name, name)
                x = values(half, 5) if range_ == "any" else x.astype(half)
            wire = np.asarray(reduce.pack_array(x, codec))
            yield f"lossless {name} {range_}", wire.view(np.uint8)
    for codec in (QSGD(7, 128), TernGrad(), QSGD(127)):
        yield f"elias {codec}", np.asarray(elias.shorten(codec.encode(floats(3, RANGES["usual"]), 7), codec))
    yield "digest", np.array([digest(whole(1, 1000))], np.uint64)


def main() -> None:
    codecs = [*CODECS, *OTHERS, *HALVES.values()]
    every = itertools.chain(reductions(), *(coded(*each) for each in itertools.product(codecs, RANGES)), packed())
    with np.errstate(all="ignore"):
        for name, x in every:
            print(f"{told(x)} {name}")


if __name__ == "__main__":
    main()
