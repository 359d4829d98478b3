"""The laws of each codec of float32, in NumPy: the laws of kernels/cpu/codec_*.h and convert.h told a second time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from hocket.kernels.codecs import CODECS, FP8, L2, NATURAL, ONEBIT, SIGN, WHOLE, Codec

Array = np.ndarray[Any, Any]
F32, U32, U64 = np.float32, np.uint32, np.uint64
SMALL = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
BLOCKS = {codec.name: codec for codec in CODECS}
UNIT = {name: float(ml_dtypes.finfo(dtype).eps) for name, dtype in SMALL.items()}
UNIT |= {"int8": 0.51 / 127, "fp8": 1.02 / 16, "int4": 0.51 / 7, "sign": 1.0}
"""The largest error of one encoding, as a part of the element's magnitude, or of its block's largest."""


def vectors(n: int) -> list[Array]:
    """Vectors on which codecs should be tried."""
    dice = np.random.default_rng(n)
    normal = dice.standard_normal(n).astype(F32)
    wide = normal * np.exp(dice.uniform(-80, 80, n)).astype(F32)
    tiny = (normal * 1e-44).astype(F32)  # scales that are subnormal, or zero
    return [normal, wide, tiny, np.zeros(n, F32), -np.abs(normal), np.full(n, 3e38, F32)]


def blocks_of(x: Array, block: int) -> Array:
    """In rows, the last of which is filled up with zeros."""
    rows = np.zeros((-(-len(x) // block), block), F32)
    rows.reshape(-1)[: len(x)] = x
    return rows


def dice(key: int, count: int) -> Array:
    """dice.h: random numbers of 32 bits."""
    h = np.arange(count, dtype=U32) * U32(0x9E3779B9) + U32(key & 0xFFFFFFFF)
    h = (h ^ h >> U32(16)) * U32(0x85EBCA6B)
    h = (h ^ h >> U32(13)) + U32(key >> 32)
    h = h * U32(0xC2B2AE35)
    return h ^ h >> U32(16)


def halves(rolled: Array) -> Array:
    """dice.h: of each block's first half of numbers, all bits, then the lower half of them."""
    first = rolled[:, : rolled.shape[1] // 2]
    return np.concatenate([first, first << U32(16)], 1)


def in_pairs(rows: Array) -> Array:
    """Sums of rows, in the order of HK_SUMS in codes.h: every thirty-second after the other, then those in pairs."""
    sums = np.zeros((len(rows), 32), F32)
    for at in range(0, rows.shape[1], 32):
        sums = sums + rows[:, at : at + 32]
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    return sums


def lengths(count: int, block: int) -> Array:
    """The floats of each block that are the caller's."""
    held = np.full((-(-count // block), 1), block, F32)
    if count % block:
        held[-1] = count % block
    return held


def packed(codes: Array, bits: int) -> Array:
    """pack.h: codes in rows of bytes."""
    areas, shift = [], 0
    for width in (4, 2, 1):
        if bits & width:
            stride = codes.shape[1] * width // 8
            some = (codes >> shift & ((1 << width) - 1)).reshape(len(codes), 8 // width, stride)
            areas.append((some << (np.arange(8 // width) * width)[:, None]).sum(1))
            shift += width
    return np.concatenate(areas, 1).astype(np.uint8)


class Encoded:
    """A vector by a codec: its headers and codes in rows, and what they stand for."""

    def __init__(self, x: Array, codec: Codec, key: int = 0) -> None:
        self.count, rows = len(x), blocks_of(x, codec.block)
        with np.errstate(all="ignore"):
            make = {
                WHOLE: self._whole, FP8: self._fp8, SIGN: self._sign, ONEBIT: self._onebit, NATURAL: self._natural
            }[codec.code]  # fmt: skip
            held = lengths(len(x), codec.block)
            make(rows, held, codec, halves(dice(key, rows.size).reshape(rows.shape)))

    @property
    def wire(self) -> Array:
        return np.concatenate([np.ascontiguousarray(self.header).view(np.uint8), self.bytes], 1).reshape(-1)

    @property
    def x(self) -> Array:
        return self.values.astype(F32).reshape(-1)[: self.count]

    def _scaled(self, rows: Array, scale: Array) -> Array:
        self.header = np.where(scale < np.finfo(F32).tiny, F32(0), scale).astype(F32)
        fine = np.isfinite(self.header) & (self.header > 0)
        return np.where(fine, rows * (F32(1) / self.header), 0).astype(F32)

    def _whole(self, rows: Array, held: Array, codec: Codec, rolled: Array) -> None:
        most = F32(codec.levels)
        norm = top = np.abs(rows).max(1, initial=0, keepdims=True)
        parts = rows * (F32(1) / top)
        squares, usual = in_pairs(parts * parts), np.isfinite(top) & (top >= np.finfo(F32).tiny)
        if codec.norm == L2:
            length = top * np.sqrt(squares)
            norm = np.where(usual, np.minimum(length, np.finfo(F32).max), top)
        elif codec.clip:
            cut = top * (F32(codec.clip) * np.sqrt(squares / held))
            norm = np.where(usual, np.where(cut < top, cut, top), top)
        scaled = self._scaled(rows, norm / most)
        if codec.stochastic:
            spread = rolled.view(np.int32).astype(F32) * F32(2**-32 - 2**-46)
            scaled = np.where(np.isfinite(self.header) & (self.header > 0), scaled + spread, 0).astype(F32)
        codes = np.clip(np.rint(scaled), -most, most).astype(int)
        zero = 0 if codec.bits == 8 else 1 << (codec.bits - 1)
        self.bytes = codes.astype(np.int8).view(np.uint8) if codec.bits == 8 else packed(codes + zero, codec.bits)
        self.values = codes.astype(F32) * self.header

    def _fp8(self, rows: Array, held: Array, codec: Codec, rolled: Array) -> None:
        scaled = self._scaled(rows, np.abs(rows).max(1, initial=0, keepdims=True) / F32(448))
        codes = np.clip(scaled, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        self.bytes, self.values = codes.view(np.uint8), codes.astype(F32) * self.header

    def _sign(self, rows: Array, held: Array, codec: Codec, rolled: Array) -> None:
        mean = in_pairs(np.abs(rows) * (F32(1) / held))
        self.header = np.where(np.isfinite(mean), mean, F32(np.nan)).astype(F32)
        self.bytes, self.values = packed((rows < 0).astype(int), 1), np.where(rows < 0, -self.header, self.header)

    def _onebit(self, rows: Array, held: Array, codec: Codec, rolled: Array) -> None:
        below, part = rows < 0, (rows * (F32(1) / held)).astype(F32)
        under = below.sum(1, keepdims=True).astype(F32)
        over = held - under
        high = np.where(over > 0, in_pairs(np.where(below, F32(0), part)) * (held / over), F32(0))
        low = np.where(under > 0, in_pairs(np.where(below, part, F32(0))) * (held / under), F32(0))
        odd = ~(np.isfinite(high) & np.isfinite(low))
        self.header = np.where(odd, F32(np.nan), np.concatenate([high, low], 1)).astype(F32)
        self.bytes = packed(below.astype(int), 1)
        self.values = np.where(below, self.header[:, 1:], self.header[:, :1])

    def _natural(self, rows: Array, held: Array, codec: Codec, rolled: Array) -> None:
        top = np.abs(rows).max(1, initial=0, keepdims=True)
        bits = (top.view(U32) + U32(0x7FFFFF)) & U32(0x7F800000)
        scale = np.where(np.isfinite(top), np.minimum(bits, U32(0x7F000000)).view(F32), F32(np.nan))
        scaled = self._scaled(rows, scale).view(U32)
        carry = rolled >> U32(9) | U32(0x40) if codec.stochastic else U32(0x400000)
        power = np.minimum((scaled & U32(0x7FFFFFFF)) + carry >> U32(23), U32(127))
        fine = np.isfinite(self.header) & (self.header > 0)
        power, sign = np.where(fine, power, U32(0)), np.where(fine, scaled & U32(0x80000000), U32(0))
        self.bytes = (power | sign >> U32(24)).astype(np.uint8)
        self.values = (power << U32(23) | sign).astype(U32).view(F32) * self.header


def sent(x: Array, name: str | Codec, key: int = 0) -> Array:
    """x as another rank gets it."""
    if isinstance(name, str) and name in SMALL:
        return x.astype(SMALL[name]).astype(F32)
    codec = name if isinstance(name, Codec) else BLOCKS[name]
    with np.errstate(invalid="ignore"):
        return Encoded(x, codec, key).x


def wire_bytes(n: int, name: str) -> int:
    """The bytes of n floats on the wire."""
    return 2 * n if name in SMALL else -(-n // BLOCKS[name].block) * BLOCKS[name].itemsize


def room(given: list[Array], name: str, encodings: int) -> Array:
    """The distance that a sum of these may have from the exact one."""
    magnitude = sum(np.abs(each) for each in given)
    if name in BLOCKS and len(magnitude):
        block = BLOCKS[name].block
        magnitude = np.repeat(blocks_of(magnitude, block).max(1), block)[: len(magnitude)]
    return encodings * (UNIT[name] * magnitude + 1e-7)  # the last: subnormals of fp16
