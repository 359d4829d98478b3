"""Along which ranks an array is cut, and along which it is alike: layers tell it, and `Sharded` asks.

It is kept beside the arrays while they live, and counts for views of them, too.  Of a copy nothing is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Placement(NamedTuple):
    """Facts that one layer has told."""

    comm: Any
    alike: bool
    """Do its ranks have the same numbers?  Else each has a part of one array, ..."""
    own: bool = False
    """... or an array of its own: a stage's, an expert's."""


_told: dict[int, list[Placement]] = {}
"""By the array's id."""


def tell(array: Any, comm: Any, *, alike: bool = False, own: bool = False) -> None:
    """The array, NumPy's or torch's, is cut among the ranks of `comm`, or alike on them."""
    if id(array) not in _told:
        _told[id(array)] = []
        weakref.finalize(array, _told.pop, id(array), None).atexit = False
    _told[id(array)].append(Placement(comm, alike, own))


def tell_all(stages: Iterable[Any], comm: Any) -> None:
    """Each rank has stages of its own: so has it their `parameters`, where they have such arrays by name."""
    for stage in stages:
        parameters = getattr(stage, "parameters", None)
        for array in parameters.values() if isinstance(parameters, Mapping) else ():
            tell(array, comm, own=True)


def asked(array: Any) -> list[Placement]:
    """Facts known of it, without those told of ranks that are lost now."""
    while array is not None:
        if id(array) in _told:
            return [told for told in _told[id(array)] if not getattr(told.comm, "lost", ())]
        array = getattr(array, "base", None)
    return []
