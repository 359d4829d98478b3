"""Where calls run: how many ranks on how many hosts, over which transports; and which algorithms can run there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hocket.algorithms.language.registry import Algorithm, get, names
from hocket.collectives.delegates.libraries import library

LONG = "long "
"""Before the name of the transport across, where a round trip takes milliseconds: other times, and other choices."""
NEAR = "near "
"""Before it where all ranks are on one host, and share no memory: what is in flight stays in the caches."""


class Fabric(NamedTuple):
    """The number of ranks on each host, and the transports inside and across ("" where there is none)."""

    groups: tuple[int, ...]
    inside: str
    across: str
    segment: int
    """Bytes of a pipelined chunk in flight."""

    @property
    def transports(self) -> str:
        """Both in a word: "shm" or "shm+tcp"."""
        return "+".join(filter(None, (self.inside, self.across))) or "alone"

    @property
    def text(self) -> str:
        """Transports and hosts: "shm 4" or "shm+tcp 2+2"."""
        return f"{self.transports} {'+'.join(map(str, self.groups))}"

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """Ranks in such groups, counted through."""
        starts = [sum(self.groups[:i]) for i in range(len(self.groups))]
        return tuple(tuple(range(start, start + n)) for start, n in zip(starts, self.groups, strict=True))

    @property
    def size(self) -> int:
        return sum(self.groups)

    @property
    def apart(self) -> bool:
        """Are the ranks on several hosts?"""
        return len(self.groups) > 1 and not self.across.startswith(NEAR)

    @property
    def long(self) -> bool:
        return self.across.startswith(LONG)

    @property
    def short(self) -> Fabric:
        """The same, without a word about the length of its links."""
        return self._replace(across=self.across.removeprefix(LONG))


@lru_cache(maxsize=1024)
def known(collective: str, name: str, layout: Fabric) -> Algorithm | None:
    """The algorithm of that name if it runs on that layout; one for hosts is made for it."""
    if name not in names(collective, for_hosts=True):
        return None
    algorithm = get(collective, name)
    if algorithm.for_hosts is not None:
        return algorithm.for_hosts(layout.ranks, False) if 1 < len(layout.groups) < layout.size else None
    return algorithm if algorithm.requires(layout.size) is None else None


def candidates(
    collective: str, layout: Fabric, commutative: bool = True, libraries: Sequence[str] = ()
) -> dict[str, Algorithm]:
    """Every algorithm that runs on that layout, and keeps rank order if it must; and those of `libraries`."""
    named = {name: known(collective, name, layout) for name in names(collective, for_hosts=True)}
    named |= {name: library(collective, name) for name in libraries}
    return {name: each for name, each in named.items() if each is not None and (commutative or each.order == "rank")}
