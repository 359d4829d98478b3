"""Fragments: which parameters are averaged together."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Sequence
from typing import NamedTuple

from hocket.arguments import whole
from hocket.errors import ArgumentError
from hocket.training.flat import Flat


class Fragment(NamedTuple):
    """Parameters that are averaged together."""

    number: int
    names: tuple[str, ...]
    span: slice
    """Where they are in vectors of all parameters."""


def cut(flat: Flat, wanted: int | Sequence[Sequence[str]]) -> list[Fragment]:
    """The parameters in fragments: so many, of about equal size, each of parameters that follow each other; or those
    given by name.

    >>> import numpy as np
    >>> made = cut(Flat({name: np.zeros(4) for name in "abcd"}), 2)
    >>> [each.names for each in made], made[1].span
    ([('a', 'b'), ('c', 'd')], slice(8, 16, None))
    """
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        groups = [tuple(names) for names in wanted]
        given = list(itertools.chain(*groups))
        if sorted(given) != sorted(flat.arrays) or not all(groups):
            wrong = sorted({name for name in given if given.count(name) > 1 or name not in flat.arrays}, key=str)
            wrong = wrong or sorted(flat.arrays.keys() - set(given)) or ["an empty fragment"]
            raise ArgumentError(f"fragments={reprlib.repr(wanted)} must name each parameter once; look at {wrong[0]!r}")
    else:
        groups = _even(flat, whole(wanted, "fragments"))
    ends = itertools.accumulate((flat.count(names) for names in groups), initial=0)
    return [
        Fragment(i, names, slice(*span))
        for i, (names, span) in enumerate(zip(groups, itertools.pairwise(ends), strict=True))
    ]


def _even(flat: Flat, count: int) -> list[tuple[str, ...]]:
    """So many groups, none of them empty: each ends where its share of the elements is nearest."""
    names = [*flat.arrays]
    if not 1 <= count <= len(names):
        raise ArgumentError(f"fragments={count} must be 1 to {len(names)}, as there are {len(names)} parameters")
    ends, cuts = [*itertools.accumulate(flat.sizes[name] for name in names)], [0]
    for i in range(1, count):
        goal = flat.size * i / count
        may = range(cuts[-1] + 1, len(names) - (count - i) + 1)
        cuts.append(min(may, key=lambda cut: abs(ends[cut - 1] - goal)))
    return [tuple(names[begin:end]) for begin, end in itertools.pairwise([*cuts, len(names)])]
