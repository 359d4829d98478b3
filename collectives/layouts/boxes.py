"""Boxes: regular parts of an array, a `range` for each axis.  They meet in boxes, and what is left of one is boxes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

Box = tuple[range, ...]


def plain(indices: range) -> range:
    """The same indices, by the one `range` that says them."""
    if len(indices) < 2:
        return range(indices.start, indices.start + 1) if indices else range(0)
    return range(indices.start, indices[-1] + 1, indices.step)


def count(box: Box) -> int:
    """Elements of a box."""
    return math.prod(map(len, box))


def common(a: range, b: range) -> range:
    """The indices that are in both: the Chinese remainder theorem."""
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    if start >= stop:
        return range(0)
    if a.step == b.step == 1:
        return range(start, stop)
    shared = math.gcd(a.step, b.step)
    apart, rest = divmod(b.start - a.start, shared)
    if rest:
        return range(0)
    turns = b.step // shared
    first = a.start + a.step * (apart * pow(a.step // shared, -1, turns) % turns)
    both = a.step * turns
    return plain(range(first + -((first - start) // both) * both, stop, both))


def meet(a: Box, b: Box) -> Box | None:
    """The elements that are in both, a box; None if there are none."""
    met = tuple(map(common, a, b))
    return met if all(met) else None


def without(whole: range, part: range) -> Iterator[range]:
    """The indices of `whole` that are not in `part`, which lies in it."""
    inside = part.step // whole.step if len(part) > 1 else 1
    pieces = [range(whole.start, part.start, whole.step), range(part[-1] + whole.step, whole.stop, whole.step)]
    pieces += [range(part.start + i * whole.step, part[-1], part.step) for i in range(1, inside)]
    return (plain(piece) for piece in pieces if piece)


def rest(whole: Box, part: Box) -> Iterator[Box]:
    """The elements of `whole` that are not in `part`, which lies in it: boxes that have none in common."""
    for axis, (own, taken) in enumerate(zip(whole, part, strict=True)):
        for left in without(own, taken):
            yield (*part[:axis], left, *whole[axis + 1 :])


def cover(wanted: Iterable[Box], by: Box) -> tuple[list[Box], list[Box]]:
    """The parts of the wanted boxes that are in `by`, and those that are not: disjoint if the wanted ones are."""
    taken: list[Box] = []
    left: list[Box] = []
    for box in wanted:
        met = meet(box, by)
        if met is None:
            left.append(box)
        else:
            taken.append(met)
            left += rest(box, met)
    return taken, left


def inside(part: Box, whole: Box) -> tuple[Any, ...]:
    """Where `part`, which lies in `whole`, is in an array that holds `whole`: an index that gives a view, always."""
    slices = (
        slice(at := (p.start - w.start) // w.step, at + (len(p) - 1) * (by := max(1, p.step // w.step)) + 1, by)
        for p, w in zip(part, whole, strict=True)
    )
    return (*slices, ...)


def contiguous(part: Box, whole: Box) -> bool:
    """Do the elements of `part` follow each other in a C array that holds `whole`?"""
    partial = [len(p) < len(w) for p, w in zip(part, whole, strict=True)]
    first = next((axis for axis, n in enumerate(map(len, part)) if n > 1), len(part))
    if any(partial[first + 1 :]):
        return False
    return first == len(part) or part[first].step == whole[first].step


def cut(box: Box, parts: int) -> list[Box]:
    """`parts` boxes of about equal lengths, or as many as there can be, along the first axis that is long enough."""
    axis = next((a for a, n in enumerate(map(len, box)) if n >= parts), None)
    if axis is None:
        axis = max(range(len(box)), key=lambda a: len(box[a]), default=None)
    if axis is None or parts < 2:
        return [box]
    own = box[axis]
    each, more = divmod(len(own), min(parts, len(own)))
    ends = list(accumulate([each + 1] * more + [each] * (min(parts, len(own)) - more)))
    pieces = (own[a:b] for a, b in zip([0, *ends], ends, strict=False))
    return [(*box[:axis], plain(piece), *box[axis + 1 :]) for piece in pieces]


def words(box: Box) -> str:
    """Text such as "[0:4, 1:9:2]"."""
    texts = (f"{r.start}:{r.stop}" + (f":{r.step}" if r.step > 1 else "") for r in box)
    return f"[{', '.join(texts)}]"
