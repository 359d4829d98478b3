"""All that rank 0 knows of a job: what the ranks said, and what was measured between them.  Data only."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from hocket.collectives.job.cores import crowded
from hocket.tools.doctor.clocks import Offset
from hocket.tools.doctor.facts import Facts
from hocket.tools.doctor.links import Speed
from hocket.tools.doctor.pairing import Pair

Group = tuple[str, str, tuple[tuple[str, str], ...], tuple[int, ...]]
"""A transport, what it says of itself, why each other one is not used, and the ranks that are reached so."""


@dataclasses.dataclass
class Report:
    """`groups` and `addresses` are the ranks' own: by rank, then its ways to others."""

    facts: Sequence[Facts]
    hosts: Sequence[Sequence[int]]
    groups: Sequence[Sequence[Group]]
    addresses: dict[int, str]
    """Where each rank listens, as the others see it."""
    links: dict[Pair, Speed] = dataclasses.field(default_factory=dict)
    """By (lower rank, higher rank)."""
    clocks: dict[int, Offset] = dataclasses.field(default_factory=dict)
    """By host; rank 0's is not there."""
    unmeasured: int = 0
    """Pairs of ranks for which there was no time."""

    def __post_init__(self) -> None:
        self.host_of = {rank: host for host, ranks in enumerate(self.hosts) for rank in ranks}
        self.names = _names(self)
        self._transports = {(r, p): name for r, each in enumerate(self.groups) for name, _, _, to in each for p in to}

    @property
    def size(self) -> int:
        return len(self.facts)

    def transport(self, pair: Pair) -> str:
        """The one that this pair uses."""
        return self._transports[pair]

    def inside(self, pair: Pair) -> bool:
        """Are they on one host?"""
        return bool(self.host_of[pair[0]] == self.host_of[pair[1]])

    @cached_property
    def crowded(self) -> frozenset[int]:
        """Hosts on machines whose ranks outnumber the cores, so that times vary.  (A container is a host.)"""
        full = crowded(self.facts)
        return frozenset(host for host, ranks in enumerate(self.hosts) if self.facts[ranks[0]]["kernel"] in full)


def _names(report: Report) -> list[str]:
    """A name for each host: its own, or, where several call themselves the same, its address, or its number."""
    nodes = [report.facts[ranks[0]]["node"] for ranks in report.hosts]
    places = [report.addresses.get(ranks[0], "") for ranks in report.hosts]
    times, seen = Counter(nodes), Counter(places)
    return [
        node if times[node] == 1 else f"{node} at {place}" if place and seen[place] == 1 else f"{node}#{host}"
        for host, (node, place) in enumerate(zip(nodes, places, strict=True))
    ]
