"""scale_array: how each dtype rounds, exact division by n, saturation."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hocket.errors import ArgumentError
from hocket.kernels.cpu import reduce

Array = np.ndarray[Any, Any]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
SMALL = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.fixture(params=reduce.levels(), autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    reduce.use_level(request.param)
    yield request.param
    reduce.use_level(reduce.levels()[-1])


def scaled(x: Array, factor: float) -> Array:
    out = np.empty_like(x)
    reduce.scale_array(out, x, factor)
    inplace = x.copy()
    reduce.scale_array(inplace, inplace, factor)
    assert inplace.tobytes() == out.tobytes()
    return out


@pytest.mark.parametrize("dtype", INTEGERS)
def test_one_over_n_divides_integers_exactly(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, 999, dtype=dtype, endpoint=True)
    x[:4] = info.min, info.max, 98, 49
    for n in (2, 3, 7, 49, 100, 127):
        want = [(abs(v) // n) * (1 if v > 0 else -1) for v in x.tolist()]
        assert scaled(x, 1.0 / n).tolist() == want


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_round_toward_zero_and_saturate(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([0, 1, 3, 100, info.max, info.min], dtype)
    assert scaled(x, 1.5)[:4].tolist() == [0, 1, 4, min(150, info.max)]
    assert scaled(x, 1.5)[4:].tolist() == [info.max, info.min]
    assert scaled(x, -1e30)[1] == info.min and scaled(x, 1e30)[1] == info.max
    assert scaled(x, np.inf)[3] == info.max
    assert scaled(x, np.nan).tolist() == [0] * 6
    assert scaled(x, 1.0).tolist() == x.tolist()


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_64_bit_integers_keep_every_bit(dtype: str) -> None:
    x = np.array([2**62 - 1, 2**53 + 1, 3], dtype)
    assert scaled(x, 2.0).tolist() == [2**63 - 2, 2**54 + 2, 6]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("factor", [1.7, 1e-5, 0.1 + 0.2, -2.5, 5e-324, 1e300, 2.0**11, 2.0**-70])
def test_64_bit_products_are_exact_before_they_are_truncated(dtype: str, factor: float) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, 200, dtype=dtype, endpoint=True)
    x[:100] >>= np.arange(100, dtype=dtype) % 60
    want = [min(max(int(v * Fraction(factor)), info.min), info.max) for v in x.tolist()]
    assert scaled(x, factor).tolist() == want


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.__name__)
@pytest.mark.parametrize("factor", [1 / 3, 1.7, -0.0, np.inf, np.nan])
def test_small_floats_are_scaled_in_fp32_and_rounded_once(dtype: type, factor: float) -> None:
    size = np.dtype(dtype).itemsize
    x: Array = np.arange(256**size).astype(f"u{size}").view(dtype)
    with np.errstate(all="ignore"):
        want = (x.astype(np.float32) * np.float32(factor)).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(scaled(x, factor).astype(np.float32), want)


def test_a_nan_factor_of_any_payload_gives_nan() -> None:
    factor = float(np.array(0x7FFFFFFFFFFFFFFF, np.uint64).view(np.float64))
    assert np.isnan(scaled(np.ones(99, ml_dtypes.bfloat16), factor).astype(np.float32)).all()


def test_float32_is_scaled_in_double() -> None:
    x = np.random.default_rng(0).standard_normal(1001).astype(np.float32)
    want = (x.astype(np.float64) * (1 / 3)).astype(np.float32)
    np.testing.assert_array_equal(scaled(x, 1 / 3), want)
    np.testing.assert_array_equal(scaled(x[:1000].view(np.complex64), 1 / 3), want[:1000].view(np.complex64))


def test_float64_and_complex128() -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    np.testing.assert_array_equal(scaled(x, 1 / 3), x * (1 / 3))
    np.testing.assert_array_equal(scaled(x.view(np.complex128), 1 / 3), (x * (1 / 3)).view(np.complex128))


@pytest.mark.parametrize("dtype", [bool, [("value", "f4"), ("index", "i4")]], ids=str)
def test_what_is_no_number_is_refused(dtype: Any) -> None:
    x = np.zeros(4, dtype)
    with pytest.raises(ArgumentError, match="only numbers can be scaled, got"):
        reduce.scale_array(x, x, 0.5)


NARROW = [np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 1000, 4099])
def test_conversion_rounds_once(dtype: type, count: int) -> None:
    bits = np.random.default_rng(count).integers(0, 1 << 32, count, dtype=np.uint32)
    x = bits.view(np.float32)
    small, back = np.empty(count, dtype), np.empty(count, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for factor in (1.0, 0.25, 3.0):
            reduce.scale_array(small, x, factor)
            want = (x * np.float32(factor)).astype(dtype)
            number = ~np.isnan(want.astype(np.float32))
            assert small[number].tobytes() == want[number].tobytes()
            assert np.isnan(small[~number].astype(np.float32)).all()
            reduce.scale_array(back, small, factor)
            again = small.astype(np.float32) * np.float32(factor)
            assert np.array_equal(back, again, equal_nan=True)


@pytest.mark.parametrize("dtype", NARROW)
def test_every_small_float_comes_back(dtype: type) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide, back = np.empty(1 << 16, np.float32), np.empty(1 << 16, dtype)
    reduce.scale_array(wide, every, 1.0)
    assert np.array_equal(wide, every.astype(np.float32), equal_nan=True)
    reduce.scale_array(back, wide, 1.0)
    number = ~np.isnan(wide)
    assert back[number].tobytes() == every[number].tobytes() and np.isnan(back[~number].astype(np.float32)).all()


def test_what_cannot_be_converted() -> None:
    with pytest.raises(ArgumentError, match="int8 cannot be converted to float32"):
        reduce.scale_array(np.empty(3, np.float32), np.zeros(3, np.int8), 1.0)
    with pytest.raises(ArgumentError, match="the same"):
        reduce.scale_array(np.empty(3, np.float16), np.zeros(4, np.float32), 1.0)
