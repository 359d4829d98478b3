"""Random shapes, layouts and hosts."""

from __future__ import annotations

import random

import numpy as np

import hocket
from hocket.collectives.layouts.boxes import Box, plain


def some_range(dice: random.Random, n: int) -> range:
    start = dice.randrange(n + 1)
    return plain(range(start, dice.randrange(start, n + 1), dice.randrange(1, 4)))


def some_box(dice: random.Random, shape: tuple[int, ...]) -> Box:
    return tuple(some_range(dice, n) for n in shape)


def some_shape(dice: random.Random) -> tuple[int, ...]:
    return tuple(dice.randrange(1, 9) for _ in range(dice.randrange(4)))


def some_layout(dice: random.Random, shape: tuple[int, ...], size: int, whole: bool) -> hocket.Layout:
    """A random layout; if `whole`, one that holds every element."""
    axis = dice.randrange(len(shape)) if shape else 0
    kinds = ["replicated", "flat", "boxes"] + ["cut", "cyclic", "blocks", "twice"] * bool(shape)
    kind = dice.choice(kinds)
    if kind == "replicated":
        return hocket.Layout.replicated(shape, size)
    if kind == "cut":
        return hocket.Layout.cut(shape, size, axis)
    if kind == "cyclic":
        return hocket.Layout.cyclic(shape, size, axis)
    if kind == "blocks":
        return hocket.Layout.cyclic(shape, size, axis, block=2)
    if kind == "flat":
        before = dice.randrange(9)
        return hocket.Layout.flat(shape, size, before, before + int(np.prod(shape)) + dice.randrange(9))
    if kind == "twice" and size % 2 == 0:
        placements = [dice.choice(["a", ("a", "b")]), *[None] * (len(shape) - 1)]
        return hocket.Layout.placed(shape, {"a": 2, "b": size // 2}, placements)
    boxes = [[some_box(dice, shape) for _ in range(dice.randrange(3))] for _ in range(size)]
    if whole:
        boxes[dice.randrange(size)].append(tuple(range(n) for n in shape))
    return hocket.Layout(shape, [[tuple(slice(r.start, r.stop, r.step) for r in box) for box in own] for own in boxes])


def some_hosts(dice: random.Random, size: int) -> list[list[int]]:
    ranks = [dice.randrange(1 + dice.randrange(3)) for _ in range(size)]
    return [each for host in range(3) if (each := [r for r in range(size) if ranks[r] == host])]
