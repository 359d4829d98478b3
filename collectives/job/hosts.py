"""Which ranks are on one host.  A set of ranks is a number here, a bit for each: every rank looks at all pairs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any


def machine(facts: dict[str, Any], near: bool) -> tuple[str, ...]:
    """The facts that tell machines apart: containers of one kernel have node names of their own.

    `near`: memory was tried.  Then ranks that have no folder in common are apart unless it is proven that they are not:
    containers may have one node name, and each devices of its own.
    """
    return facts["kernel"], facts["node"], facts["folder"] if near else ""


def reached(size: int, tables: Iterable[Sequence[Sequence[str | None]]]) -> list[int]:
    """The ranks that each rank reaches, and that reach it, by one of the transports. those that it reaches, and that
    reach it, by one of the transports.

    `tables`: a transport's refusals, [from][to].
    """
    everybody = (1 << size) - 1
    masks = [1 << r for r in range(size)]
    for table in tables:
        if not any(map(any, table)):
            return [everybody] * size
        to = [sum(1 << b for b, why in enumerate(row) if not why) for row in table]
        masks = [masks[a] | sum(1 << b for b in ranks(to[a]) if to[b] >> a & 1) for a in range(size)]
    return masks


def alike(places: Sequence[Hashable]) -> list[int]:
    """The ranks at the same place, for each rank: those at the same place."""
    by_place: dict[Hashable, int] = {}
    for r, place in enumerate(places):
        by_place[place] = by_place.get(place, 0) | 1 << r
    return [by_place[place] for place in places]


def sharing(near: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Ranks grouped so that in a group each is near each."""
    groups: list[int] = []
    for r, mine in enumerate(near):
        home = next((i for i, group in enumerate(groups) if group & mine == group), None)
        if home is None:
            groups.append(1 << r)
        else:
            groups[home] |= 1 << r
    return tuple(map(ranks, groups))


def hosts(near: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Ranks grouped so that two that are near each other are in one group: through a third one, too."""
    groups: list[int] = []
    for r, mine in enumerate(near):
        joined = sum(group for group in groups if group & mine)  # they have no rank in common
        groups = [*(group for group in groups if not group & mine), joined | 1 << r]
    return tuple(sorted(map(ranks, groups)))


def ranks(some: int) -> tuple[int, ...]:
    """The ranks of a set, in their order."""
    return tuple(r for r in range(some.bit_length()) if some >> r & 1)
