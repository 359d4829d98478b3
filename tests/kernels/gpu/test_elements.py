"""The CUDA kernels that change one buffer into another, emulated: scale, cast, copy, checksum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.conformance import oracle
from hocket.conformance.gpu_check.laws import checksum
from hocket.errors import ArgumentError
from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import DType, by_name
from hocket.kernels.gpu import catalogue, launch
from support.gpu.emulation import BARRIER, GEOMETRY, OK, UNKNOWN, Buffer, Emulator

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
NUMBERS = [row for row in oracle.ROWS if row.kind in ("int", "uint", "float", "complex")]
FACTORS = [1 / 3, 1 / 7, 0.5, 1.7, -2.5, -0.0, 1e300, 2.0**70, np.inf, np.nan]
SMALL = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
LENGTHS = (0, 1, 7, 8, 9, 255, 4099)


def random_bits(dtype: np.dtype[Any], count: int, rng: np.random.Generator) -> Array:
    return rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)


@pytest.mark.parametrize("row", NUMBERS, ids=str)
def test_scale_has_the_bits_of_the_cpu(emulator: Emulator, row: DType) -> None:
    rng = np.random.default_rng(row.code)
    part = row.itemsize // (2 if row.kind == "complex" else 1)
    for count in LENGTHS:
        for factor in FACTORS:
            x = random_bits(oracle.numpy_dtype(row), count, rng)
            want = np.empty_like(x)
            reduce.scale_array(want, x, factor)
            for offset in (0, part):
                given, out = Buffer.of(x, offset), Buffer(x.nbytes)
                assert emulator.loops(catalogue.scale(row.name), 3, 64, out.address, given.address, count, factor) == OK
                assert oracle.same(out.as_array(x.dtype), want).all() and out.is_intact()
                in_place = given.address, given.address
                assert emulator.loops(catalogue.scale(row.name), 3, 64, *in_place, count, factor) == OK
                assert given.bytes.tobytes() == out.bytes.tobytes() and given.is_intact()


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize("widen", [False, True], ids=["narrow", "widen"])
def test_casts_are_those_of_ml_dtypes(emulator: Emulator, small: str, widen: bool) -> None:
    rows = by_name("float32"), by_name(small)
    source, target = rows[::-1] if widen else rows
    kernel = catalogue.cast(source.name, target.name)
    rng = np.random.default_rng(0)
    for count in (*LENGTHS, 65536):
        x = random_bits(oracle.numpy_dtype(source), count, rng)
        if count == 65536 and not widen:  # ties, and the ends of the small format
            edges = np.arange(65536).astype(f"u{target.itemsize}").view(oracle.numpy_dtype(target)).astype("f4")
            x = (edges.view("u4") + rng.integers(-1, 2, count).astype("u4") + (1 << 12)).view("f4")
        for scale, offset in ((1.0, 0), (0.37, 1)):
            with np.errstate(all="ignore"):
                want = (x.astype(np.float32) * np.float32(scale)).astype(oracle.numpy_dtype(target))
            given = Buffer.of(x, offset * source.itemsize)
            out = Buffer(want.nbytes, offset * target.itemsize)
            assert emulator.loops(kernel, 3, 64, out.address, given.address, count, scale) == OK
            assert oracle.same(out.as_array(want.dtype), want).all() and out.is_intact()


def test_a_gpus_own_nan_stays_one(emulator: Emulator) -> None:
    """0x7fffffff is what a GPU's FPU makes; rounded to bfloat16 like a number it would be -0."""
    x = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32)
    for small in SMALL:
        given, out = Buffer.of(x), Buffer(3 * by_name(small).itemsize)
        assert emulator.loops(catalogue.cast("float32", small), 1, 32, out.address, given.address, 3, 1.0) == OK
        assert np.isnan(out.as_array(oracle.numpy_dtype(by_name(small))).astype("f4")).all()


def test_copies_many_segments_of_any_alignment(emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    sizes = [0, 1, 15, 16, 17, 4096, 3 * launch.PIECE + 5, 0, launch.PIECE, 33, 0, 100_001, 2]
    given = [Buffer.of(rng.integers(0, 256, n, dtype=np.uint8), int(rng.integers(0, 17))) for n in sizes]
    for skew in (0, 4, 1):
        outs = [Buffer(n, int(skew + g.address) % 16) for n, g in zip(sizes, given, strict=True)]
        segments = [(g.address, out.address, n) for g, out, n in zip(given, outs, sizes, strict=True)]
        table, pieces = launch.segment_table(segments)
        assert pieces == sum(-(-n // launch.PIECE) for n in sizes)
        assert emulator.loops(catalogue.COPY, 4, 64, table.ctypes.data, len(table), pieces) == OK
        for g, out in zip(given, outs, strict=True):
            assert out.bytes.tobytes() == g.bytes.tobytes() and out.is_intact()
    assert launch.segment_table([])[1] == 0


def test_checksums_do_not_depend_on_the_grid(emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    for count in (0, 1, 8, 13, 1000, 4099):
        x = rng.integers(0, 256, count, dtype=np.uint8)
        for grid, offset in ((1, 0), (3, 0), (2, 3)):
            given, out = Buffer.of(x, offset), Buffer(8, fill=0)
            assert emulator.launch(catalogue.CHECKSUM, grid, 64, given.address, count, out.address, seed=grid) == OK
            assert int(out.as_array(np.uint64)[0]) == checksum(x.tobytes())


def test_the_emulator_refuses_what_it_cannot_run(emulator: Emulator) -> None:
    given, out = Buffer(64), Buffer(8, fill=0)
    values = given.address, 64, out.address
    assert emulator.loops(catalogue.CHECKSUM, 1, 32, *values) == BARRIER
    assert emulator.launch(catalogue.CHECKSUM._replace(name="hk_nothing"), 1, 32, *values) == UNKNOWN
    assert emulator.launch(catalogue.CHECKSUM, 1, 1025, *values) == GEOMETRY
    with pytest.raises(ArgumentError, match="hk_checksum takes 3 arguments, got 2"):
        launch.arguments(catalogue.CHECKSUM, 1, 2)


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(ArgumentError, match="only numbers can be scaled, got bool"):
        catalogue.scale("bool")
    with pytest.raises(ArgumentError, match="between float32 and one of float16.*got float16 to bfloat16"):
        catalogue.cast("float16", "bfloat16")
