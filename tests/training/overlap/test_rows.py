"""Dealing, in all small cases, by the four points of its docstring."""

from __future__ import annotations

import itertools
import random

import pytest

from hocket.training.overlap.dealing import TAIL, Row, Tensor, Unit, deal

SIZES = {"float32": 4, "float16": 2}


def check(tensors: list[Tensor], urgency: list[int], made: list[int], rows: list[Row], slice: int, fuse: int) -> None:
    lane_of: dict[int, int] = {}
    for lane, row in enumerate(rows):
        seen: list[int] = []
        for unit in row:
            assert len({tensors[piece.tensor].dtype for piece in unit.pieces}) <= 1
            assert unit.bucket or len(unit.pieces) == 1
            nbytes = sum((piece.end - piece.begin) * tensors[piece.tensor].itemsize for piece in unit.pieces)
            assert nbytes <= max(fuse, slice or nbytes, 8), "too long"
            assert nbytes <= max(fuse, TAIL) or not unit.bucket, "a bucket is too long"
            for piece in unit.pieces:
                assert 0 <= piece.begin < piece.end <= tensors[piece.tensor].elements
                assert lane_of.setdefault(piece.tensor, lane) == lane
                seen += [piece.tensor] * (not seen or seen[-1] != piece.tensor)
        assert seen == sorted(seen, key=made.index) and len(set(seen)) == len(seen)
        assert [bool(unit.told) for unit in row] == [False] * (len(row) - 1) + [True]
        for i in row[-1].told:
            assert lane_of.setdefault(i, lane) == lane
    pieces = [piece for row in rows for unit in row for piece in unit.pieces]
    for i, tensor in enumerate(tensors):
        mine = [(piece.begin, piece.end) for piece in pieces if piece.tensor == i]
        assert [begin for begin, _ in mine] + [tensor.elements] == [0] + [end for _, end in mine], "each element once"
    assert sorted(i for row in rows for i in row[-1].told) == list(range(len(tensors)))
    lanes = [lane_of[i] for i in urgency]
    assert lanes == sorted(lanes), "higher lanes have the more urgent tensors"
    total, largest = sum(t.nbytes for t in tensors), max(t.nbytes for t in tensors)
    for lane in range(len(rows)):
        mine_bytes = sum(t.nbytes for i, t in enumerate(tensors) if lane_of[i] == lane)
        assert len(rows) == 1 or mine_bytes <= total / len(rows) * 2 + largest


@pytest.mark.parametrize("apart", [False, True])
def test_small_cases(apart: bool) -> None:
    """All sizes of up to three tensors, all orders, two dtypes, all settings."""
    cases = 0
    for count in (1, 2, 3):
        for sizes, dtypes in itertools.product(
            itertools.product((0, 1, 5), repeat=count), itertools.product(SIZES, repeat=count)
        ):
            tensors = [Tensor(str(i), n, d, SIZES[d]) for i, (n, d) in enumerate(zip(sizes, dtypes, strict=True))]
            for made in itertools.permutations(range(count)):
                for lanes, slice, fuse in itertools.product((1, 2, 3), (0, 8), (0, 12)):
                    rows = deal(tensors, range(count), made, lanes, slice, fuse, apart)
                    check(tensors, list(range(count)), list(made), rows, slice, fuse)
                    cases += 1
    assert cases > 10_000


def test_large_cases() -> None:
    dice = random.Random(5)
    for _ in range(200):
        n = dice.randint(1, 40)
        tensors = [Tensor(str(i), dice.choice([0, 1, 999, 20_000, 3_000_000]), "float32", 4) for i in range(n)]
        urgency, made = dice.sample(range(n), n), dice.sample(range(n), n)
        slice, fuse = dice.choice([0, 80_000, 1 << 20]), dice.choice([0, 4096, 1 << 20])
        check(tensors, urgency, made, deal(tensors, urgency, made, dice.randint(1, 9), slice, fuse), slice, fuse)


def test_the_end_of_a_long_tensor_is_copied_alone() -> None:
    (*others, last), = deal([Tensor("a", 1 << 20, "float32", 4)], [0], [0], 1, 0, 0)
    assert [unit.bucket for unit in others] == [False] and last.bucket
    assert [4 * (piece.end - piece.begin) for piece in last.pieces] == [TAIL] and last.told == (0,)


def test_small_tensors_share_a_call() -> None:
    tensors = [Tensor(str(i), 1000, "float32", 4) for i in range(160)]
    row, = deal(tensors, range(160), range(159, -1, -1), 1, 0, 1 << 20)
    assert len(row) == 1 and row[0].bucket and len(row[0].pieces) == 160
    assert [piece.tensor for piece in row[0].pieces] == list(range(159, -1, -1))
    unfused, = deal(tensors, range(160), range(159, -1, -1), 1, 0, 0)
    assert len(unfused) == 160 and unfused[0] == Unit(unfused[0].pieces, False)
