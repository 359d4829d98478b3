"""The words between ranks before their vectors, and their faults: every rank sees it, and raises the same.

At the beginning all say how their loops are made.  In each round a rank tells a row of numbers: which round it has
come to, its weight, which parameter is not finite, and a digest of its outer parameters.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.errors import ArgumentError, MismatchError

CHANGED = -2


class RollRow(NamedTuple):
    """A rank's words before a round: 48 bytes."""

    round: float
    weight: float
    broken: float
    """The number of the first parameter that is not finite; -1: none; CHANGED: they are not those of the beginning."""
    digest: float
    """The digest of the fragment's outer parameters, before the round."""
    fresh: float
    """1: this rank holds nothing of what its compression keeps among these ranks."""
    settings: float
    """A digest of how its loop is made."""

    def array(self) -> Any:
        return np.array([self])


def check(
    rows: Sequence[RollRow], members: Sequence[Any], names: Sequence[str], replicated: bool, wrong: str = ""
) -> None:  # fmt: skip
    """Raises the same error on all ranks if a round with these rows makes no sense; `names`: of the parameters.

    `wrong`: what this rank has found of its own, in words.
    """
    each = list(zip(members, rows, strict=True))
    what = f"outer loop, round {int(min(row.round for row in rows))}"
    if len({row.round for row in rows}) > 1:
        where = _spread((int(row.round), who) for who, row in each)
        raise MismatchError(f"{what}: ranks have come to different rounds: {where}; call step() equally often")
    if len({row.settings for row in rows}) > 1:
        where = _spread((f"{int(row.settings):08x}", who) for who, row in each)
        raise MismatchError(f"{what}: the loops' settings differ, by digest: {where}; give all ranks the same")
    if changed := [who for who, row in each if row.broken == CHANGED]:
        why = f" ({wrong})" if wrong else ""
        raise ArgumentError(f"{what}: the parameters of ranks {changed} are not those of the beginning{why}")
    if broken := [f"{names[int(row.broken)]!r} of rank {who}" for who, row in each if row.broken >= 0]:
        raise ArgumentError(f"{what}: NaN or infinity in parameter {', '.join(broken)}; nothing was averaged")
    if negative := [who for who, row in each if not 0 <= row.weight < np.inf]:
        raise ArgumentError(f"{what}: the counts of ranks {negative} are negative: step(count) takes samples or tokens")
    if not any(row.weight for row in rows):
        raise ArgumentError(f"{what}: all ranks have weight 0, so there is no average: step(count) had only zeros")
    if replicated and len({row.digest for row in rows}) > 1:
        where = _spread((f"{int(row.digest):08x}", who) for who, row in each)
        raise MismatchError(f"{what}: outer parameters differ, by digest: {where}; load one checkpoint on all ranks")


def agree(comm: Any, said: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    """Share what all ranks say of their loops; raises MismatchError, on all of them, where that differs.  Collective.
    """
    rows = comm.share(said, "the outer loop")
    for field in [name for name in said if name != "start"]:
        values = [row.get(field) for row in rows]
        if field == "layout" and len(set(values)) > 1:
            _name_the_parameter(comm, shapes)
        if any(value != values[0] for value in values):
            where = _spread((reprlib.repr(value), comm.members[r]) for r, value in enumerate(values))
            raise MismatchError(f"outer loop: ranks were given different {field}: {where}; give all the same")
    return rows  # type: ignore[no-any-return]


def _name_the_parameter(comm: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Ranks have other parameters: raise, with the first that differs."""
    every = comm.share([[name, list(shape)] for name, shape in shapes.items()], "the outer loop")
    for r, other in zip(comm.members, every, strict=True):
        for i in range(max(len(other), len(every[0]))):
            pair = [str(tuple(each[i])) if i < len(each) else "none" for each in (every[0], other)]
            if pair[0] != pair[1]:
                first = comm.members[0]
                raise MismatchError(f"outer loop: parameter {i} is {pair[0]} on rank {first} and {pair[1]} on rank {r}")


def _spread(pairs: Iterable[tuple[Any, Any]]) -> str:
    """500 on ranks 0, 1; 100 on rank 2: of (value, rank)."""
    ranks: dict[Any, list[Any]] = {}
    for value, who in pairs:
        ranks.setdefault(value, []).append(who)
    each = ((value, "rank" if len(r) == 1 else "ranks", ", ".join(map(str, r))) for value, r in ranks.items())
    return "; ".join(f"{value} on {word} {who}" for value, word, who in each)
