"""allreduce_sparse: exactly the sum of the dense vectors, by each way, and the bytes that its docstring says."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression.sparse.allreduce import WAYS, allreduce_sparse
from hocket.compression.sparse.pairs import FAR, MOST, element, itemsize, packed, rounded, unpacked
from hocket.errors import ArgumentError
from hocket.kernels.codecs import HALF_NAMES
from support.cases import more
from support.worlds import spread

Array = np.ndarray[Any, Any]


def pairs(rank: int, n: int, k: int, dtype: str) -> tuple[Array, Array]:
    """Half of the indices are common to all; small integers, so that sums are exact in any order."""
    dice = np.random.default_rng([rank, n, k])
    common = np.random.default_rng(n).choice(n, k // 2, replace=False) if k else np.zeros(0, int)
    indices = np.concatenate([common, dice.integers(0, max(n, 1), k - k // 2)])
    dice.shuffle(indices)
    return indices, dice.integers(1, 9, k).astype(dtype)


def sums(comm: Communicator) -> None:
    for n, k, dtype in (
        (1, 1, "f4"), (50, 0, "f4"), (1000, 17, "f8"), (4096, 900, "i8"), (100_000, 1000, "f4"), (900_000, 40, "f4"),
    ):  # fmt: skip
        given = [pairs(r, n, k if r else k // 3, dtype) for r in range(comm.size)]
        right, there = np.zeros(n, dtype), np.zeros(n, bool)
        for indices, values in given:
            np.add.at(right, indices, values)
            there[indices] = True
        for way, codec in [(way, codec) for way in (None, *WAYS) for codec in (None, *HALF_NAMES)]:
            if codec and dtype != "f4":
                continue
            indices, values = allreduce_sparse(comm, *given[comm.rank], n, algorithm=way, codec=codec)
            assert values.dtype == dtype and np.array_equal(indices, np.flatnonzero(there)), (way, n)
            assert np.array_equal(values, right[indices]), (way, n)
            out = np.full(n, 7, dtype)
            found = allreduce_sparse(comm, *given[comm.rank], n, algorithm=way, codec=codec, out=out)
            assert np.array_equal(out, right) and np.array_equal(found[0], indices), (way, n)


def a_pair_that_is_far(comm: Communicator) -> None:
    """It costs as many bytes whatever lies between, up to the longest vector."""
    for n in (1 << 20, 1 << 40, 1 << 61, (1 << 62) - 1):
        for way in ("allgather", "split"):
            before = sum(stat.bytes for stat in comm.stats())
            indices = np.array([n // 2, n - 1 - comm.rank])
            found = allreduce_sparse(comm, indices, np.ones(2, np.float32), n, way)
            assert found[0].tolist() == sorted([n // 2, *range(n - comm.size, n)]), (n, way)
            assert found[1].tolist() == [comm.size, *[1] * comm.size]
            assert sum(stat.bytes for stat in comm.stats()) - before < 1000 * comm.size


def same_bits(comm: Communicator) -> None:
    x = np.random.default_rng(comm.rank).standard_normal(500).astype(np.float32)
    exact = {codec: comm.allreduce(rounded(x, codec).astype(float)) for codec in HALF_NAMES}
    exact[None] = comm.allreduce(x.astype(float))
    for way, codec in [(way, codec) for way in WAYS for codec in (None, *HALF_NAMES)]:
        _, values = allreduce_sparse(comm, np.arange(500) * 3, x, 1500, way, codec=codec)
        every = comm.allgather(values.view(np.uint32)[None])
        assert (every == every[0]).all(), way
        assert np.abs(values - exact[codec]).max() < 1e-5


def wrong(comm: Communicator) -> None:
    one = np.ones(1, np.float32)
    for indices, values, n, text in (
        ([3], one, 3, "indices must be 0 to 2, got 3 to 3"),
        ([-1], one, 3, "indices must be 0 to 2"),
        ([0, 1], one, 3, r"of shape \[k\], .*; got int64\[2\] and float32\[1\]"),
        ([0.5], one, 3, "must be integers"),
        ([0], np.ones(1, complex), 3, "numbers or rows"),
        ([0], one, -3, "n=-3 must be the length"),
    ):
        with pytest.raises(ArgumentError, match=text):
            allreduce_sparse(comm, indices, values, n)
    for codec, values in (("int8", one), ("fp16", np.ones(1))):
        with pytest.raises(ArgumentError, match="takes fp16 or bf16, with float32"):
            allreduce_sparse(comm, [0], values, 3, codec=codec)
    with pytest.raises(ArgumentError, match=r"out must be a writable.* array, float32\[3\], got float64\[3\]"):
        allreduce_sparse(comm, [0], one, 3, out=np.ones(3))
    with pytest.raises(ArgumentError, match="did you mean 'split'"):
        allreduce_sparse(comm, [0], one, 3, "splt")
    if comm.size > 1:
        with pytest.raises(ArgumentError, match=r"ranks were given different .*rank 0: \[3, .*; rank 1: \[4, "):
            allreduce_sparse(comm, [0], one, 3 + comm.rank)
    assert allreduce_sparse(comm, [0], one, 3)[1].tolist() == [comm.size]
    with hocket.group(), pytest.raises(ArgumentError, match=r"allreduce_sparse\(\) needs its result at once"):
        allreduce_sparse(comm, [0], one, 3)


def of_rows(comm: Communicator) -> None:
    """Each element a row, in a tensor of two axes: as NumPy adds it up."""
    shape, k = (30, 7), 40
    for row, dtype in (((), "f4"), ((3,), "f4"), ((2, 5), "f8"), ((40,), "i8"), ((1,), "i1")):
        every = []
        for r in range(comm.size):
            dice = np.random.default_rng([r, *row])
            where = np.stack([dice.integers(0, length, k + r) for length in shape])
            every.append((where, dice.integers(1, 9, (k + r, *row)).astype(dtype)))
        right, there = np.zeros((*shape, *row), dtype), np.zeros(shape, bool)
        for where, values in every:
            np.add.at(right, tuple(where), values)
            there[tuple(where)] = True
        for way, codec in [(way, codec) for way in (None, *WAYS) for codec in (None, *HALF_NAMES)]:
            if codec and dtype != "f4":
                continue
            out = np.full(right.shape, 7, dtype)
            for into in (None, out):
                places, sums = allreduce_sparse(comm, *every[comm.rank], shape, way, codec=codec, out=into)
                assert np.array_equal(places, np.nonzero(there))
                assert sums.dtype == dtype and np.array_equal(sums, right[tuple(places)]), (way, row)
            assert np.array_equal(out, right), (way, row)


def wrong_rows(comm: Communicator) -> None:
    one, at = np.ones((1, 2), np.float32), [[0], [2]]
    for indices, values, n, text in (
        ([[0], [3]], one, (2, 3), "indices must be 0 to 2, got 3 to 3"),
        ([0, 2], one, (2, 3), r"of shape \[2, k\]"),
        ([[0]], one, (2, 3), r"of shape \[2, k\]"),
        (at, one[:, :0], (2, 3), "rows of numbers"), (at, np.float32(1), (2, 3), "k numbers"),
        (at, one, (2, -3), "a tensor's shape"), (at, one, (), "a tensor's shape"),
        (at, one, (1 << 31, 1 << 31), "a tensor's shape"),
    ):
        with pytest.raises(ArgumentError, match=text):
            allreduce_sparse(comm, indices, values, n)
    with pytest.raises(ArgumentError, match=r"contiguous array, float32\[2, 3, 2\], got float32\[2, 3, 2\]"):
        allreduce_sparse(comm, at, one, (2, 3), out=np.ones((2, 3, 4), np.float32)[..., ::2])
    if comm.size > 1:
        with pytest.raises(ArgumentError, match=r"were given different .*rank 0: \[2, 3, 2, .*; rank 1: \[3, 2, 2, "):
            shape, there = ((2, 3), at) if comm.rank == 0 else ((3, 2), [[2], [0]])
            allreduce_sparse(comm, there, one, shape)


def test_far_apart() -> None:
    """Whatever the distances, and a zero that is one of the vector's."""
    dice = np.random.default_rng(4)
    farther = 2.0 ** dice.integers(1, 54, 200) * dice.uniform(0.5, 1, 200)
    for first in (0, 7, FAR, 10**12):
        for gaps in (
            [0], [FAR - 1, FAR, FAR + 1, 2 * FAR], [2 * FAR - 1, 1], dice.integers(1, 10**6, 1000), [],
            [FAR << 8, (FAR << 8) + 1, FAR << 16, 3, FAR * ((1 << 32) - 1), FAR << 32, FAR << 45],
            farther.astype(int) + 1, [MOST - 1 - first],
        ):  # fmt: skip
            indices = first + np.cumsum(np.array(gaps, np.int64))
            values = dice.integers(0, 99, len(indices))
            for kind, codec in (("f4", None), ("f4", "fp16"), ("f4", "bf16"), ("i1", None), ("f8", None), ("g", None)):
                rows = packed((indices, values.astype(kind)), first, codec)
                size = itemsize(np.dtype(kind), codec)
                assert rows.shape[1] == size and len(rows) <= len(values) * (1 + -(-6 // (size - 2)))
                found = unpacked(rows, np.dtype(kind), first, codec)
                assert np.array_equal(found[0], indices) and np.array_equal(found[1], values)
            for row in (np.zeros(1, "i1"), np.zeros(3, "i1"), np.zeros((20, 20))):
                many = (values[(..., *[None] * row.ndim)] + row).astype(row.dtype)
                found = unpacked(packed((indices, many), first, None), element(many), first, None)
                assert np.array_equal(found[0], indices) and np.array_equal(found[1], many)


def test_rows_of_strangers() -> None:
    """Rows that are no vector's raise an ArgumentError, and nothing else: no index is beyond, twice, or out of order.
    """
    dice = np.random.default_rng(5)
    refused = 0
    for _ in range(2000):
        size = int(dice.choice([3, 4, 6, 10]))
        rows = dice.integers(0, 256, (int(dice.integers(0, 12)), size)).astype(np.uint8)
        rows[dice.random(len(rows)) < dice.random(), :2] = 0
        rows[dice.random(len(rows)) < 0.5, 2:] = 0
        kind, codec = {3: ("i1", None), 4: ("f4", "bf16"), 6: ("f4", None), 10: ("f8", None)}[size]
        try:
            indices, values = unpacked(rows, np.dtype(kind), 5, codec)
        except ArgumentError:
            refused += 1
            continue
        assert len(indices) == len(values) and (np.diff(indices, prepend=4) > 0).all() and indices.max(initial=0) < MOST
    assert 200 < refused < 1800
    for rows in (np.zeros((1, 6), np.uint8), np.zeros((500, 6), np.uint8)):
        with pytest.raises(ArgumentError, match="a row of distance 0 has no pair after it"):
            unpacked(rows, np.dtype("f4"), 0, None)


def test_halves_are_the_nearest() -> None:
    """Halves are those of the codecs; what has no finite half is infinite, and a NaN stays one."""
    x = np.concatenate([np.random.default_rng(1).standard_normal(9999) * 10.0 ** np.arange(-33, 36)[:, None]])
    x = np.concatenate([x.reshape(-1), [np.nan, np.inf, -np.inf, 0.0, -0.0, 65520, 3.4e38]]).astype(np.float32)
    with np.errstate(over="ignore"):
        assert np.array_equal(rounded(x, "fp16"), x.astype(np.float16).astype(np.float32), equal_nan=True)
        right = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(rounded(x, "bf16"), right, equal_nan=True)
    negative = np.array([0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(rounded(negative, "bf16")).all()


@pytest.mark.parametrize(("size", "transport"), [(1, "threads"), (3, "tcp"), *more((5, "threads"))])
def test_between_ranks(size: int, transport: str) -> None:
    spread((sums, a_pair_that_is_far, same_bits, wrong, of_rows, wrong_rows), size, transport)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_bytes_are_as_told(size: int) -> None:
    """k = 1 % of a million floats, half of them common; in pairs that a rank sends."""
    n, k = 1_000_000, 10_000

    def count(comm: Communicator, way: str) -> float:
        indices = np.concatenate([np.arange(k // 2), k // 2 + comm.rank * k // 2 + np.arange(k // 2)]) * (n // k // 9)
        allreduce_sparse(comm, indices, np.ones(k, np.float32), n, way)
        return sum(stat.bytes for stat in comm.stats()) / 6

    pairs_of = {way: hocket.local_world(size).run(count, way)[0] for way in ("allgather", "split")}
    assert pairs_of["allgather"] == pytest.approx(size * k, rel=0.02), "what all bring, of which each sends its own"
    result = k // 2 + size * (k // 2)
    assert pairs_of["split"] == pytest.approx(k + result, rel=0.05)
