"""The codecs' CUDA kernels, emulated: every kind has the bits of the CPU's kernels, at any length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hocket.compression import FP8, QSGD, Int, Int4, Int8, Natural, OneBit, Sign, TernGrad
from hocket.kernels.codecs import CODECS, HALVES, Codec
from hocket.kernels.cpu import reduce
from hocket.kernels.gpu import catalogue, launch
from support.codec_laws import vectors
from support.gpu.emulation import OK, Buffer, Emulator, modules_of

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
CODED = (
    *CODECS, *HALVES.values(), Int8(64, "stochastic"), Int4(1024, "stochastic"), *(Int(bits) for bits in (2, 3, 5, 6)),
    Int(7, 192), Int(3, 64), FP8(1024), Sign(64), Sign(320), OneBit(), OneBit(64), Natural(), Natural(64, "nearest"),
    QSGD(1), QSGD(7, 128), QSGD(22, norm="l2"), TernGrad(), TernGrad(1.0, 192), TernGrad(math.inf, 1024),
)  # fmt: skip
by_codec = pytest.mark.parametrize("codec", CODED, ids=str)
LENGTHS = (1, 63, 64, 255, 256, 257, 4099)
KEY = 0xFEDCBA9876543210
GRID, BLOCK = 2, 64


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    kernels = [kernel for codec in CODED for kernel in (*catalogue.coders(codec), *catalogue.keepers(codec))]
    return Emulator(tmp_path_factory.mktemp("codecs"), modules_of(kernels))


def wire_bytes(codec: Codec, n: int) -> int:
    return -(-n // codec.block) * codec.itemsize


def encoded(x: Array, codec: Codec, key: int = KEY) -> Array:
    out = np.empty(wire_bytes(codec, len(x)), np.uint8)
    reduce.encode_array(out, x, codec, key)
    return out


def decoded(wire: Array, n: int, codec: Codec) -> Array:
    out = np.empty(n, np.float32)
    reduce.decode_array(out, wire, codec)
    return out


def bits(x: Array) -> Array:
    """Any NaN is as good as another."""
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32)


def check_wire(got: Buffer, want: Array, n: int, codec: Codec) -> None:
    """The same bytes; of a block that holds a NaN, the same floats."""
    assert got.is_intact()
    whole = len(want) // codec.itemsize * codec.block
    rows = [each.reshape(-1, codec.itemsize) for each in (got.bytes, want)]
    floats = [decoded(each, whole, codec).reshape(-1, codec.block) for each in (got.bytes.copy(), want)]
    alike = (rows[0] == rows[1]).all(1) | np.isnan(floats[1]).any(1) & (bits(floats[0]) == bits(floats[1])).all(1)
    assert alike.all(), f"{codec}, {n} floats: block {np.argmin(alike)} of {len(alike)}"


def given(n: int) -> list[Array]:
    odd = np.resize(np.float32([1, -2, 3]), n)
    odd[n // 2], odd[n // 3] = np.nan, -np.inf
    return [*vectors(n), odd, np.full(n, -0.0, np.float32)]


@by_codec
@pytest.mark.parametrize("factor", [1.0, -0.3])
def test_encodes_and_decodes_as_the_cpu_does(emulator: Emulator, codec: Codec, factor: float) -> None:
    kernels = catalogue.coders(codec)
    for n in LENGTHS:
        for turn, x in enumerate(given(n)):
            with np.errstate(all="ignore"):
                want = encoded(x * np.float32(factor), codec)
                right = decoded(want, n, codec) * np.float32(factor)
            source, wire = Buffer.of(x, 4 * (turn % 3)), Buffer(len(want), 4 * (turn % 2))
            values = wire.address, source.address, n, factor, KEY, 0
            assert emulator.launch(kernels.encode, GRID, BLOCK, *values, seed=turn) == OK
            check_wire(wire, want, n, codec)
            coded, out = Buffer.of(want, 4 * (turn % 2)), Buffer(4 * n, 4 * (turn % 3))
            assert emulator.loops(kernels.decode, GRID, BLOCK, out.address, coded.address, n, factor) == OK
            assert out.is_intact() and np.array_equal(bits(out.as_array(np.float32)), bits(right)), (n, turn)


@by_codec
def test_sums_as_the_cpu_does(emulator: Emulator, codec: Codec) -> None:
    for n in LENGTHS:
        for k in (2, 3, 4, 5, 6, 7, 8, 33):
            xs = [given(n)[(k + j) % 8 if k < 8 else 0] * np.float32(0.7) ** j for j in range(k)]
            wires = [encoded(x, codec, j) for j, x in enumerate(xs)]
            want = np.empty_like(wires[0])
            reduce.fold_arrays(want, wires, codec, n, KEY)
            there = [Buffer.of(wire, 4 * (j % 3)) for j, wire in enumerate(wires)]
            out = there[k // 2] if k % 2 else Buffer(len(want))
            values = launch.ways([each.address for each in there]), out.address, n, k, KEY, 0
            assert emulator.launch(catalogue.coders(codec).fold, GRID, BLOCK, *values, seed=k) == OK
            check_wire(out, want, n, codec)
            for j, (buffer, wire) in enumerate(zip(there, wires, strict=True)):
                assert buffer is out or (buffer.bytes.tobytes() == wire.tobytes() and buffer.is_intact()), j


@by_codec
def test_a_part_of_a_vector_is_rounded_as_in_the_whole(emulator: Emulator, codec: Codec) -> None:
    """With the threads that calls have: eight warps to a block."""
    n, skip = 11 * codec.block - 5, 3 * codec.block
    x = vectors(n)[0]
    want = encoded(x, codec)[3 * codec.itemsize :]
    source, wire = Buffer.of(x[skip:]), Buffer(len(want))
    values = wire.address, source.address, n - skip, 1.0, KEY, skip
    assert emulator.launch(catalogue.coders(codec).encode, 1, launch.BLOCK, *values) == OK
    check_wire(wire, want, n - skip, codec)


def check_left(got: Buffer, want: Array, about: str) -> None:
    assert got.is_intact() and np.array_equal(bits(got.as_array(np.float32)), bits(want)), about


@by_codec
def test_what_is_lost_is_left_as_the_cpu_leaves_it(emulator: Emulator, codec: Codec) -> None:
    """`before` is nothing, an array, or `after` itself, which may also be x."""
    kernels = catalogue.keepers(codec)
    for n in LENGTHS:
        for turn, x in enumerate(given(n)):
            before = given(n)[turn - 3] * np.float32(0.1) if turn % 3 else None
            left = np.empty_like(x)
            with np.errstate(all="ignore"):
                wire = codec.encode(x, KEY, (before, left))
            source, out = Buffer.of(x, 4 * (turn % 3)), Buffer(len(wire), 4 * (turn % 2))
            owed = None if before is None else Buffer.of(before, 4 * (turn % 4))
            after = source if turn % 3 == 0 else owed if turn % 3 == 1 else Buffer(4 * n, 4 * (turn % 3))
            assert after is not None
            places = owed.address if owed else 0, after.address
            values = out.address, source.address, n, KEY, 0, *places
            assert emulator.launch(kernels.encode, GRID, BLOCK, *values, seed=turn) == OK
            check_wire(out, wire, n, codec)
            check_left(after, left, f"{codec}, {n} floats, {turn}")
        xs = [each * np.float32(0.7) for each in given(n)[:3]]
        wires, left = [encoded(x, codec, j) for j, x in enumerate(xs)], xs[0].copy()
        want = np.empty_like(wires[0])
        reduce.fold_arrays(want, wires, codec, n, KEY, (left, left))
        there, owed = [Buffer.of(wire, 4 * j) for j, wire in enumerate(wires)], Buffer.of(xs[0], 4)
        values = launch.ways([each.address for each in there]), there[1].address, n, 3, KEY, 0
        assert emulator.launch(kernels.fold, GRID, BLOCK, *values, owed.address, owed.address) == OK
        check_wire(there[1], want, n, codec)
        check_left(owed, left, f"the sum's, {codec}, {n} floats")
