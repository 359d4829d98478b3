"""Every dtype x op x number of inputs x level against the NumPy oracle, at odd lengths and odd addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hocket.conformance import oracle
from hocket.errors import ArgumentError
from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import DType, by_name
from hocket.kernels.ops import OPS

Array = np.ndarray[Any, Any]
INPUTS = [1, 2, 3, 4, 5, 8, 9]
CASES = [(row, op.name) for row in oracle.ROWS for op in OPS if row.kind in op.kinds]
QUARTERS = [CASES[i::4] for i in range(4)]
"""A test's share; a failure names the case."""


@pytest.fixture(params=reduce.levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    reduce.use_level(request.param)
    yield request.param
    reduce.use_level(reduce.levels()[-1])


def placed(x: Array, offset: int) -> Array:
    """A copy of `x` that starts `offset` bytes past a 64-byte boundary."""
    room = np.empty(x.nbytes + 64 + offset, np.uint8)
    start = -room.ctypes.data % 64 + offset
    copy = room[start : start + x.nbytes].view(x.dtype)
    copy[...] = x
    return copy


def check(row: DType, op: str, inputs: list[Array], out: Array) -> None:
    want = oracle.fold(op, inputs)
    reduce.reduce_arrays(out, inputs, op)
    good = oracle.same(out, want)
    if not good.all():
        at = int(np.argmin(good))
        operands = [x[at] for x in inputs]
        pytest.fail(f"{row} {op} element {at} of {len(out)}: {operands} gave {out[at]}, not {want[at]}")


@pytest.mark.parametrize("quarter", range(4))
def test_matches_the_oracle(quarter: int, level: str) -> None:
    for row, op in QUARTERS[quarter]:
        rng = np.random.default_rng(row.code * 16 + len(op))
        for k in INPUTS:
            for count in (0, 1, 7, 31, 129, 1000):
                inputs = [placed(oracle.samples(row, count, rng), (3 * j + 1) % 8) for j in range(k)]
                check(row, op, inputs, placed(np.zeros_like(inputs[0]), 5))


@pytest.mark.parametrize("quarter", range(4))
def test_blocks_meet_without_a_seam(quarter: int, level: str) -> None:
    for row, op in QUARTERS[quarter]:
        rng = np.random.default_rng(row.code)
        inputs = [oracle.samples(row, 2 * 8192 // row.itemsize + 5, rng) for _ in range(6)]
        check(row, op, inputs, np.empty_like(inputs[0]))


@pytest.mark.parametrize("quarter", range(4))
def test_out_may_be_any_input(quarter: int, level: str) -> None:
    for row, op in QUARTERS[quarter]:
        rng = np.random.default_rng(row.code)
        for k in INPUTS:
            originals = [oracle.samples(row, 8192 // row.itemsize + 77, rng) for _ in range(k)]
            apart = np.empty_like(originals[0])
            reduce.reduce_arrays(apart, originals, op)
            for j in range(k):
                inputs = [x.copy() for x in originals]
                reduce.reduce_arrays(inputs[j], inputs, op)
                assert inputs[j].tobytes() == apart.tobytes(), f"{row} {op}: out is input {j} of {k}"


@pytest.mark.parametrize("row", [row for row in oracle.ROWS if row.name in oracle.SMALL], ids=str)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_every_pair_of_bit_patterns(row: DType, op: str, level: str) -> None:
    """All 256 x 256 pairs of 8-bit floats; of 16-bit floats all 65536 against a few."""
    patterns = np.arange(256**row.itemsize).astype(f"u{row.itemsize}").view(oracle.numpy_dtype(row))
    rng = np.random.default_rng(0)
    partners = patterns if row.itemsize == 1 else patterns[rng.integers(0, 65536, 12)]
    for partner in partners[: 256 if level == reduce.levels()[-1] else 48]:
        for inputs in ([patterns, np.full_like(patterns, partner)], [np.full_like(patterns, partner), patterns]):
            check(row, op, inputs, np.empty_like(patterns))


def test_rounds_once() -> None:
    """1 + 2^-8 + 2^-8 is 1 in bfloat16 if each sum is rounded; in fp32 it is 1 + 2^-7, which bfloat16 holds."""
    dtype = oracle.numpy_dtype(by_name("bfloat16"))
    inputs = [np.array([x], dtype) for x in (1, 2**-8, 2**-8)]
    out = np.zeros(1, dtype)
    reduce.reduce_arrays(out, inputs, "sum")
    assert float(out[0]) == 1 + 2**-7


def test_a_bool_of_any_bits_is_true() -> None:
    odd = np.array([2, 0, 255, 0], np.uint8).view(bool)
    other = np.array([4, 8, 0, 0], np.uint8).view(bool)
    for op, want in [("sum", [1, 1, 1, 0]), ("prod", [1, 0, 0, 0]), ("bxor", [0, 1, 1, 0])]:
        out = np.zeros(4, bool)
        reduce.reduce_arrays(out, [odd, other], op)
        assert out.view(np.uint8).tolist() == want


def test_features_name_the_level_in_use(level: str) -> None:
    assert reduce.features().startswith(f"{level}: ")


def test_wrong_calls_are_refused() -> None:
    x = np.zeros(8, np.float32)
    other = np.zeros((2, 8), np.float32)
    calls: list[tuple[Array, list[Array], str, str]] = [
        (x, [], "sum", "at least one input"),
        (x, [x, x], "band", "op 'band' needs integers or bool, got float32"),
        (x, [x, x.astype(np.float64)], "sum", "input 1 is float64"),
        (x, [other[0], other[:, 0]], "sum", r"input 1 is float32\(2,\) \(not C-contiguous\)"),
        (other[:, 0], [x[:2]], "sum", "out must be C-contiguous"),
        (other[0][1:], [other[0][:-1]], "sum", "input 0 overlaps out in part"),
    ]
    for out, inputs, op, message in calls:
        with pytest.raises(ArgumentError, match=message):
            reduce.reduce_arrays(out, inputs, op)
    x.flags.writeable = False
    with pytest.raises(ArgumentError, match="writable"):
        reduce.reduce_arrays(x, [x], "sum")
    with pytest.raises(ArgumentError, match="cannot run the level 'mmx'"):
        reduce.use_level("mmx")
