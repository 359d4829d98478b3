"""The oracle, by hand: which elements come where, what their reduction is, and what is called wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hocket.algorithms.language.contract import CONTRACTS
from hocket.conformance.fuzz.values import ALL, values
from hocket.conformance.oracle import Expected, combine, difference, fold, pieces, reduced, result, same, wrong

X = [np.arange(6) + 10 * (rank + 1) for rank in range(3)]
"""10..15, 20..25, 30..35."""
GIVEN: dict[str, tuple[Any, list[list[int]]]] = {
    "allreduce": (2, [[60, 63]] * 3), "reduce": (2, [[], [60, 63], []]), "broadcast": (2, [[20, 21]] * 3),
    "scan": (2, [[10, 11], [30, 32], [60, 63]]), "exscan": (2, [[], [10, 11], [30, 32]]),
    "reduce_scatter": ((1, 3, 2), [[60], [63, 66, 69], [72, 75]]),
    "scatter": ((1, 3, 2), [[20], [21, 22, 23], [24, 25]]),
    "allgather": ((1, 0, 2), [[10, 30, 31]] * 3), "gather": (1, [[], [10, 20, 30], []]),
    "alltoall": (((0, 1, 2), (1, 2, 3), (2, 0, 1)), [[20, 30, 31], [10, 21, 22], [11, 12, 23, 24, 25, 32]]),
}  # fmt: skip
"""Lengths, and what ranks 0, 1 and 2 get of X, with root 1 and op sum."""


@pytest.mark.parametrize("collective", CONTRACTS)
def test_which_elements_come_where(collective: str) -> None:
    lengths, wanted = GIVEN[collective]
    for rank in range(3):
        given = pieces(collective, 3, rank, 1, lengths)
        found = result(given, lambda ranks, part: Expected(fold("sum", [X[r][part] for r in ranks])))
        assert (found.array.tolist() if found else []) == wanted[rank]
        assert [each.at for each in given] == [sum(other.length for other in given[:i]) for i in range(len(given))]


def test_small_floats_are_rounded_once() -> None:
    xs = [np.array([x], ml_dtypes.bfloat16) for x in (256.0, 1.0, 1.0)]
    assert fold("sum", xs) == 258, "256 + 1 is 256 in bfloat16"


def test_pairs_with_equal_values_and_nan() -> None:
    pairs = np.array([(2.0, 5), (2.0, 3), (np.nan, 9)], [("value", "f4"), ("index", "i4")])
    assert combine("minloc", pairs[:1], pairs[1:2])["index"] == 3
    assert combine("maxloc", pairs[1:2], pairs[:1])["index"] == 3
    assert combine("minloc", pairs[:1], pairs[2:])["index"] == 9, "a NaN is what comes out, as of min"
    assert np.isnan(combine("max", pairs["value"][:1], pairs["value"][2:]))


def test_same_tells_bits_apart_and_no_two_nan() -> None:
    got = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    assert same(got, np.array([0.0, 0.0, -np.nan, 2.0], np.float32)).tolist() == [True, False, True, False]
    assert wrong(got, Expected(np.array([0.0, 0.0, np.nan, 2.0], np.float32))).tolist() == [False, False, False, True]
    assert same(got.astype(np.complex64), np.array([0, 0, np.nan, 1j], np.complex64)).tolist() == [
        True, False, True, False]  # fmt: skip


def test_averages_of_whole_numbers_go_toward_zero() -> None:
    xs = [np.array([-3, 3, 8], np.int8), np.array([-2, 2, 8], np.int8)]
    assert reduced("avg", xs).array.tolist() == [-2, 2, 8] and reduced("avg", xs, size=4).array.tolist() == [-1, 1, 4]
    assert reduced("premul_sum", xs, (2.0, 3.0)).array.tolist() == [-12, 12, 40]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "float8_e5m2"])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_rounding_is_allowed_and_no_more(dtype: str, op: str) -> None:
    xs = [values((1, r), dtype, 1000, op) for r in range(4)]
    wanted = reduced(op, xs)
    fold: Callable[..., np.ndarray] = np.add if op == "sum" else np.multiply
    rounded = fold(fold(xs[3], xs[2]), fold(xs[0], xs[1])).astype(ALL[dtype])
    assert difference(rounded, wanted) == ""
    missing = fold(fold(xs[0], xs[1]), xs[2]).astype(ALL[dtype])
    assert "elements are wrong" in difference(missing, wanted)


def test_what_differs_is_told() -> None:
    one = np.arange(6, dtype=np.int32)
    other = one.copy()
    other[4] = 7
    assert difference(one, Expected(one.copy())) == ""
    assert "1 of 6 elements are wrong, the first at [4]" in difference(one, Expected(other))
    assert "shape" in difference(one, Expected(one.reshape(2, 3)))
    assert "dtype" in difference(one, Expected(one.view(np.uint32)))
