"""The codecs of blocks: every level gives the bits of the law, at any length and alignment."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hocket.compression import FP8, QSGD, Int, Int4, Int8, Natural, OneBit, Sign, TernGrad
from hocket.errors import ArgumentError
from hocket.kernels import codecs
from hocket.kernels.codecs import CODECS, HALVES, Codec
from hocket.kernels.cpu import reduce
from support.cases import each
from support.codec_laws import Encoded, dice, sent, vectors

Array = np.ndarray[Any, Any]
KEY = 0x0123456789ABCDEF
LENGTHS = (0, 1, 3, 127, 128, 129, 255, 256, 257, 1000, 4096, 10_001)
OTHERS = (
    OneBit(), Natural(), Natural(rounding="nearest"), Int8(64), FP8(1024), Sign(64),
    *(Int(bits) for bits in (2, 3, 5, 6, 7)),
    Int8(rounding="stochastic"), Int4(rounding="stochastic"), QSGD(1), QSGD(7, 128), QSGD(22, norm="l2"), QSGD(127),
    TernGrad(), TernGrad(1.0),
)  # fmt: skip
by_name = pytest.mark.parametrize("codec", [*CODECS, *OTHERS], ids=str)
also_halves = pytest.mark.parametrize("codec", [*CODECS, *OTHERS, *HALVES.values()], ids=str)


@pytest.fixture(params=reduce.levels(), autouse=True)
def level(request: pytest.FixtureRequest) -> Any:
    reduce.use_level(request.param)
    yield
    reduce.use_level(reduce.levels()[-1])


def unaligned(x: Array) -> Array:
    """The same at an odd address."""
    room = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.uint8)
    room[:] = x.view(np.uint8).reshape(-1)
    return np.frombuffer(room.data, x.dtype)


def code(x: Array, codec: Codec, key: int = KEY) -> Array:
    out = np.full(-(-len(x) // codec.block) * codec.itemsize, 0xAA, np.uint8)
    reduce.encode_array(out, x, codec, key)
    return out


def test_the_codes_are_those_of_the_c_enums() -> None:
    kernels = Path(reduce.__file__).parents[2] / "kernels"
    text = (kernels / "cpu/codec.h").read_text() + (kernels / "codes.h").read_text()
    for prefix in ("CODE", "NORM"):
        names = [name for name in dict.fromkeys(re.findall(rf"HK_{prefix}_(\w+)", text)) if name != "COUNT"]
        assert [getattr(codecs, name) for name in names] == list(range(len(names)))


@by_name
@each("n", LENGTHS)
def test_the_law(codec: Codec, n: int) -> None:
    for x in vectors(n):
        wire, right = code(x, codec), Encoded(x, codec, KEY)
        assert np.array_equal(wire, right.wire)
        assert np.array_equal(code(unaligned(x), codec), wire)
        out = np.full(n, 7, np.float32)
        reduce.decode_array(out, unaligned(wire), codec)
        assert np.array_equal(out, right.x)
        if codec.code != codecs.ONEBIT:
            assert np.array_equal(np.signbit(out[out != 0]), np.signbit(x[out != 0]) & (x[out != 0] != 0))


@by_name
@each("k", [1, 2, 3, 5, 9])
@each("more", [0, 100])
def test_a_sum_is_decoded_added_in_order_and_encoded_once(codec: Codec, k: int, more: int) -> None:
    n = 5 * codec.block + more % codec.block
    given = [vectors(n)[j % 2] * np.float32(0.1) ** j for j in range(k)]
    wires = [code(x, codec, j) for j, x in enumerate(given)]
    folded = sent(given[0], codec, 0)
    with np.errstate(over="ignore"):
        for j, x in enumerate(given[1:]):
            folded = folded + sent(x, codec, j + 1)
    right = wires[0] if k == 1 else Encoded(folded, codec, KEY).wire
    out = np.empty_like(right)
    reduce.fold_arrays(out, wires, codec, n, KEY)
    assert np.array_equal(out, right)
    reduce.fold_arrays(wires[k // 2], wires, codec, n, KEY)  # over one of its inputs
    assert np.array_equal(wires[k // 2], right)


def decoded(wire: Array, codec: Codec, n: int) -> Array:
    out = np.empty(n, np.float32)
    reduce.decode_array(out, wire, codec)
    return out


@also_halves
@each("n", [*LENGTHS, 2047, 2048, 2049])
@np.errstate(all="ignore")
def test_what_an_encoding_loses_is_left(codec: Codec, n: int) -> None:
    """To the bit: the wire is that of x + before, and `after` what that is more than what comes."""
    for x, before in zip(vectors(n), reversed(vectors(n)), strict=True):
        for owed in (before, None):
            given = x if owed is None else x + owed
            right = code(given, codec)
            left = given - decoded(right, codec, n)
            wire, after = np.full_like(right, 0xAA), unaligned(np.full(n, 7, np.float32))
            kept = None if owed is None else owed.copy()
            reduce.encode_array(wire, unaligned(x), codec, KEY, (None if owed is None else unaligned(owed), after))
            assert np.array_equal(wire, right) and np.array_equal(after, left, equal_nan=True)
            reduce.encode_array(wire, x, codec, KEY, (owed, after if owed is None else owed))  # one array for both
            assert np.array_equal(wire, right)
            if owed is not None:
                assert np.array_equal(owed, left, equal_nan=True)
                owed[:] = kept
        reduce.encode_array(wire, x, codec, KEY, (None, x))  # over x itself
        assert np.array_equal(x, left, equal_nan=True)


@also_halves
@each("k", [2, 3, 5])
@each("more", [0, 1, 2100])
def test_what_the_encoding_of_a_sum_loses_is_left(codec: Codec, k: int, more: int) -> None:
    n = 3 * codec.block + more
    given = [vectors(n)[j % 2] * np.float32(0.1) ** j for j in range(k)]
    wires, before = [code(x, codec, j) for j, x in enumerate(given)], vectors(n)[4]
    with np.errstate(all="ignore"):
        total = sum((decoded(wire, codec, n) for wire in wires[1:]), decoded(wires[0], codec, n)) + before
        right = code(total, codec)
        left = total - decoded(right, codec, n)
    out, after = np.empty_like(right), np.full(n, 7, np.float32)
    reduce.fold_arrays(out, wires, codec, n, KEY, (before, after))
    assert np.array_equal(out, right) and np.array_equal(after, left, equal_nan=True)
    reduce.fold_arrays(wires[k // 2], wires, codec, n, KEY, (before, before))  # over one of its inputs
    assert np.array_equal(wires[k // 2], right) and np.array_equal(before, left, equal_nan=True)


@by_name
@each("odd", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_comes_back_as_nan_and_no_other_does(codec: Codec, odd: float) -> None:
    x = np.ones(3 * codec.block, np.float32)
    x[codec.block + 5] = odd
    out = np.empty_like(x)
    reduce.decode_array(out, code(x, codec), codec)
    middle = slice(codec.block, 2 * codec.block)
    assert np.isnan(out[middle]).all() and np.isfinite(np.delete(out, middle)).all()
    wires = [code(each, codec) for each in (np.ones_like(x), x)]
    reduce.fold_arrays(wires[0], wires, codec)
    reduce.decode_array(out, wires[0], codec)
    assert np.isnan(out[middle]).all() and np.isfinite(np.delete(out, middle)).all()


@pytest.mark.parametrize("scale", [1.0, 0.3, 1e-44, 7e35])
def test_every_code_of_fp8(scale: float) -> None:
    """Also the two of NaN, which no encoding gives."""
    codes = np.arange(256, dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        right = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scale)
    out = np.empty(256, np.float32)
    reduce.decode_array(out, np.concatenate([np.float32([scale]).view(np.uint8), codes]), FP8())
    assert np.array_equal(out, right, equal_nan=True) and np.isnan(out[[0x7F, 0xFF]]).all()


@pytest.mark.parametrize("make", [Int8, Int4, Int, FP8, Sign, OneBit, QSGD, TernGrad, Natural])
def test_a_name_tells_each_parameter_that_is_not_the_usual_one(make: Callable[..., Codec]) -> None:
    """Codecs of one name are taken for the same."""
    taken = inspect.signature(make).parameters.values()
    needed = {each.name: 3 for each in taken if each.default is each.empty}
    usual = {each.name: each.default for each in taken if each.default is not each.empty}
    others = {"block": 320, "bucket": 320, "seed": 7, "clip": 1.5, "norm": "l2"}
    plain = make(**needed).name
    assert not any(f"{name}=" in plain for name in usual), plain
    for name, value in usual.items():
        other = others.get(name) or {"nearest": "stochastic", "stochastic": "nearest"}[value]
        assert f"{name}={other!r}" in make(**needed, **{name: other}).name, name


def test_what_does_not_fit_is_told() -> None:
    codec = CODECS[0]
    wire, x = np.empty(520, np.uint8), np.ones(300, np.float32)
    for out, given in ((wire[:260], x), (wire.view("i1"), x), (wire, x[:256]), (wire, x.astype(float)), (wire, x[::2])):
        with pytest.raises(ArgumentError, match=r"int8 converts between n float32 and ceil\(n / 256\) \* 260 uint8"):
            reduce.encode_array(out, given, codec)
    for residual in ((x[:299], x.copy()), (None, x.astype(float)), (x, np.ones(600, np.float32)[::2])):
        with pytest.raises(ArgumentError, match=r"a residual must be 300 float32, C-contiguous; got float"):
            reduce.encode_array(wire, x, codec, 0, residual)
    for out, inputs in ((wire[:261], [wire[:261]]), (wire, [])):
        with pytest.raises(ArgumentError, match="as int8"):
            reduce.fold_arrays(out, inputs, codec)


@pytest.mark.parametrize("codec", [QSGD(127), QSGD(7), Int8(rounding="stochastic"), Natural()], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.375, 7 * 2.0**-90, 2.0**90 / 128 * 85])
def test_what_needs_no_rounding_is_not_rounded(codec: Codec, scale: float) -> None:
    """In 300,000 throws of 2^16 numbers, of which the largest comes some five times.  1 / scale may be rounded."""
    steps = np.float32([127, 126, 64, 2, 1, 0, -1, -64] if codec.levels != 7 else [7, 6, 4, 2, 1, 0, -1, -4])
    x = np.resize(steps if codec.code == codecs.WHOLE else np.exp2(steps % 7), 300_000 // codec.block * codec.block)
    x *= np.float32(scale if codec.code == codecs.WHOLE else 1)  # exact
    out = np.empty_like(x)
    reduce.decode_array(out, code(x, codec), codec)
    assert np.array_equal(out, x)


def test_the_random_numbers_are_random() -> None:
    """Flat in every byte, and each bit of a key's lower half changes half of them (hk_stir spreads its bits before)."""
    rolled = dice(KEY, 1 << 16)
    for byte in rolled.view(np.uint8).reshape(-1, 4).T:
        found = np.bincount(byte, minlength=256)
        assert ((found - 256) ** 2 / 256).sum() < 400  # chi squared of 255: 0.999999 of all are below
    for bit in range(32):
        changed = (rolled ^ dice(KEY ^ 1 << bit, 1 << 16)).view(np.uint8)
        assert abs(np.unpackbits(changed).mean() - 0.5) < 0.02, bit
    assert abs(np.corrcoef(rolled[1:], rolled[:-1])[0, 1]) < 0.02


@pytest.mark.parametrize("codec", [*CODECS, QSGD(7, seed=3)], ids=str)
def test_a_codec_encodes_and_decodes_by_itself(codec: Codec) -> None:
    for count in (0, 1, codec.block, codec.block + 1, 3 * codec.block):
        x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
        wire = codec.encode(x, 5)
        assert wire.tobytes() == code(x, codec, 5).tobytes() and codec.nbytes(count) == wire.size
        found = codec.decode(wire, count)
        assert found.shape == (count,) and found.dtype == np.float32
        whole = np.zeros(-(-count // codec.block) * codec.block, np.float32)
        reduce.decode_array(whole, wire, codec)
        assert found.tobytes() == whole[:count].tobytes()
        with pytest.raises(ArgumentError, match=f"{codec.name.partition('(')[0]}.* converts between n float32 and"):
            codec.decode(wire, count + codec.block)
