"""Elias codes of a codec's elements: nothing is lost, small numbers are short, and bytes of anybody's do no harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.compression import FP8, QSGD, Int, Int8, TernGrad
from hocket.errors import ArgumentError
from hocket.kernels.codecs import Codec
from hocket.kernels.cpu import elias, reduce

Array = np.ndarray[Any, Any]
CODECS = [
    QSGD(1, norm="l2"), QSGD(4, bucket=1024, norm="l2"), QSGD(127, 64), TernGrad(), Int8(), Int8(1024),
    *(Int(bits, 64) for bits in range(2, 8)),
]  # fmt: skip


def encoded(x: Array, codec: Codec) -> Array:
    wire = np.empty(-(-x.size // codec.block) * codec.itemsize, np.uint8)
    reduce.encode_array(wire, x, codec, 7)
    return wire


def omega(number: int) -> str:
    """By the definition."""
    code = "0"
    while number > 1:
        code = f"{number:b}{code}"
        number = len(f"{number:b}") - 1
    return code


def written(codes: Array, scale: float) -> str:
    """An element by the description in elias.h."""
    sign = {True: "1", False: "0"}
    places = np.flatnonzero(codes)
    few = omega(len(places) + 1)
    for at, before in zip(places, [-1, *places], strict=False):
        few += omega(at - before) + sign[codes[at] < 0] + omega(abs(codes[at]))
    every = "".join(omega(abs(code) + 1) + (sign[code < 0] if code else "") for code in codes.tolist())
    return f"{np.float32(scale).view(np.uint32):032b}" + (f"1{every}" if len(every) < len(few) else f"0{few}")


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_what_comes_back_is_what_went_in(codec: Codec) -> None:
    rng = np.random.default_rng(0)
    for count in (0, 1, 63, 64, 1000, 5000):
        for x in (rng.standard_normal(count), rng.standard_cauchy(count), np.zeros(count), np.full(count, np.nan)):
            wire = encoded(x.astype(np.float32), codec)
            short = elias.shorten(wire, codec)
            assert np.array_equal(elias.restore(short, codec, wire.size // codec.itemsize), wire)


@pytest.mark.parametrize("codec", [QSGD(1, norm="l2"), QSGD(7, 64), Int8(64)], ids=str)
def test_the_bits_are_those_of_the_definition(codec: Codec) -> None:
    rng = np.random.default_rng(1)
    bits = ""
    blocks = [rng.standard_normal(codec.block), np.zeros(codec.block), rng.standard_cauchy(codec.block)]
    wire = encoded(np.concatenate(blocks).astype(np.float32), codec)
    for element in wire.reshape(-1, codec.itemsize):
        scale = element[:4].view(np.float32)[0]
        x = np.empty(codec.block, np.float32)
        reduce.decode_array(x, element.copy(), codec)
        bits += written(np.rint(x / (scale or 1)).astype(int), scale)
    bits += "0" * (-len(bits) % 8)
    assert "".join(f"{byte:08b}" for byte in elias.shorten(wire, codec)) == bits


def test_few_numbers_are_short() -> None:
    """A block of zeros: its scale and two bits.  The paper's example, 18 of 512: under 3 bits for 10 elements."""
    zeros = np.zeros(512 * 8, np.float32)
    assert elias.shorten(encoded(zeros, QSGD(1, norm="l2")), QSGD(1, norm="l2")).size == 8 * 34 // 8
    x = np.random.default_rng(2).standard_normal(512 * 100).astype(np.float32)
    assert elias.shorten(encoded(x, QSGD(1, norm="l2")), QSGD(1, norm="l2")).size * 8 < 0.55 * x.size


def test_bytes_that_are_no_codes() -> None:
    """Cut short, changed or made up: an ArgumentError, or elements; never more than was asked for."""
    rng = np.random.default_rng(3)
    for codec in CODECS:
        x = rng.standard_normal(codec.block * 3).astype(np.float32)
        right = elias.shorten(encoded(x, codec), codec)
        refused = 0
        for turn in range(600):
            bad = rng.integers(0, 256, rng.integers(0, 200), dtype=np.uint8) if turn % 3 == 0 else right.copy()
            if turn % 3 == 1:
                bad = bad[: rng.integers(0, bad.size)]
            if turn % 3 == 2:
                bad[rng.integers(0, bad.size)] ^= 1 << rng.integers(0, 8)
            try:
                elements = elias.restore(bad, codec, 3)
            except ArgumentError as error:
                refused += "are not the Elias codes of 3 elements" in str(error)
            else:
                assert elements.size == 3 * codec.itemsize
        assert refused >= 200, (codec, refused)
        with pytest.raises(ArgumentError, match="are not the Elias codes of 4 elements"):
            elias.restore(right, codec, 4)
        with pytest.raises(ArgumentError, match="are not the Elias codes of 2 elements"):
            elias.restore(right, codec, 2)


def test_codecs_without_whole_numbers() -> None:
    with pytest.raises(ArgumentError, match="fp8 has no Elias codes"):
        elias.shorten(np.empty(0, np.uint8), FP8())
    with pytest.raises(ArgumentError, match="3 bytes are not whole elements of int8, which have 260 bytes"):
        elias.shorten(np.empty(3, np.uint8), Int8())
