"""The plan of a redistribution: what holds for all pairs of layouts, fuzzed, and counted in bytes."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

import hocket
from hocket.collectives.layouts.boxes import Box, common, contiguous, count, cut, inside, meet, rest
from hocket.collectives.layouts.deal import FETCH, HAND_ON, Move, deal
from support.layouts import some_box, some_hosts, some_layout, some_shape


def elements(shape: tuple[int, ...], box: Box) -> list[int]:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    full = tuple(range(n) for n in shape)
    return list(np.asarray(numbers[inside(box, full)]).ravel()) if all(box) else []


def carried(moves: list[Move], source: hocket.Layout, target: hocket.Layout) -> list[list[np.ndarray]]:
    """The arrays of the target behind these moves, -1 where nothing came; each element may come once."""
    numbers = np.arange(int(np.prod(source.shape))).reshape(source.shape)
    held = [source.parts(numbers, rank) for rank in range(source.size)]
    made = [[np.full(shape, -1) for shape in target.shapes(rank)] for rank in range(target.size)]
    for move in sorted(moves, key=lambda move: move.when):
        taken = (made if move.when == HAND_ON else held)[move.source.rank][move.source.place]
        part = taken[inside(move.box, move.source.box)]
        into = made[move.target.rank][move.target.place][inside(move.box, move.target.box)]
        assert np.all(part >= 0) and np.all(into == -1), "an element that has not come, or comes twice"
        made[move.target.rank][move.target.place][inside(move.box, move.target.box)] = part
    return made


def test_every_wanted_element_comes_from_one_holder_and_crosses_once() -> None:
    dice = random.Random(67)
    for _ in range(1500):
        shape, size, other = some_shape(dice), dice.randrange(1, 9), dice.randrange(1, 9)
        source, target = some_layout(dice, shape, size, True), some_layout(dice, shape, other, False)
        hosts = some_hosts(dice, max(size, other))
        moves = deal([("w", source, target, dice.choice([1, 4, 1 << 14]))], hosts)
        numbers = np.arange(int(np.prod(shape))).reshape(shape)
        for rank, made in enumerate(carried(moves, source, target)):
            for got, want in zip(made, target.parts(numbers, rank), strict=True):
                assert np.array_equal(got, want)
        host_of = {rank: i for i, host in enumerate(hosts) for rank in host}
        for i, host in enumerate(hosts):
            has = {e for r in host for box in source.of(r) for e in elements(shape, box)}
            wants = {e for r in host for box in target.of(r) for e in elements(shape, box)}
            crossing = [m for m in moves if m.target.rank in host and host_of[m.source.rank] != i]
            come = Counter(e for m in crossing for e in elements(shape, m.box))
            assert set(come) == wants - has and all(n == 1 for n in come.values())
            assert not any(m.when == HAND_ON and host_of[m.source.rank] != host_of[m.target.rank] for m in moves)
        for move in moves:  # what a rank has, it takes from itself
            if move.source.rank != move.target.rank and move.when == FETCH:
                assert not any(meet(move.box, box) for box in source.of(move.target.rank))


def test_boxes_are_sets() -> None:
    dice = random.Random(1)
    for _ in range(3000):
        shape = some_shape(dice)
        a, b = some_box(dice, shape), some_box(dice, shape)
        if not all(a):
            continue
        met, own, other = meet(a, b), set(elements(shape, a)), set(elements(shape, b))
        assert set(elements(shape, met) if met is not None else ()) == own & other
        if met is None:
            continue
        left = [e for box in rest(a, met) for e in elements(shape, box)]
        assert sorted(left) == sorted(own - other)
        parts = cut(met, dice.randrange(1, 5))
        assert sorted(e for part in parts for e in elements(shape, part)) == sorted(own & other)
        array = np.empty(tuple(map(len, a)))
        assert not contiguous(met, a) or array[inside(met, a)].flags.c_contiguous
        assert array[inside(met, a)].size == count(met)


def test_progressions_meet_as_the_chinese_remainder_theorem_says() -> None:
    for steps in ((4, 6), (3, 5), (1, 7), (6, 6)):
        a, b = range(2, 97, steps[0]), range(5, 90, steps[1])
        assert list(common(a, b)) == sorted({*a} & {*b})


def test_holders_of_the_same_share_the_work() -> None:
    """Four hosts hold all, and one wants it: each sends a quarter."""
    source = hocket.Layout.replicated((1 << 20,), 4)
    target = hocket.Layout((1 << 20,), [[], [], [], [], [(slice(None),)]])
    moves = deal([("w", source, target, 4)], [[0], [1], [2], [3], [4]])
    assert Counter({m.source.rank: count(m.box) for m in moves}) == dict.fromkeys(range(4), 1 << 18)


@pytest.mark.parametrize(
    ("boxes", "text"),
    [
        ([[(slice(0, 5),)]], "outside of the shape (4,)"),
        ([[(slice(0, 2), slice(0, 2))]], "has 2 slices"),
        ([[slice(0, 2)]], "must be a list of boxes"),
        ([[(slice(3, 1),)]], "outside"),
    ],
)
def test_a_box_that_is_wrong(boxes: list, text: str) -> None:
    with pytest.raises(hocket.ArgumentError, match="boxes|box") as told:
        hocket.Layout((4,), boxes)
    assert text in str(told.value)


def test_what_nobody_holds_is_named() -> None:
    source = hocket.Layout((8, 4), [[(slice(0, 3), slice(None))], [(slice(4, 8), slice(None))]])
    with pytest.raises(hocket.ArgumentError, match=r"array 'w': nobody holds \[3:4, 0:4\], which rank 1 want"):
        deal([("w", source, hocket.Layout.cut((8, 4), 2, lengths=[2, 6]), 4)], [[0, 1]])
