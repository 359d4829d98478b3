"""Which pairs of ranks measure when.  Pure: no rank is asked.

In a round each host takes part in one pair at most, so pairs that measure at the same time share no host's link and no
host's memory.  Earlier rounds matter more: the first has met every two hosts before ranks of the same hosts meet again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

Pair = tuple[int, int]


def rounds(hosts: Sequence[Sequence[int]], most: int) -> list[list[Pair]]:
    """At most so many rounds; each pair of ranks is in one of them, if there are enough.

    >>> rounds([[0, 1], [2, 3]], 10)
    [[(0, 2)], [(0, 1), (2, 3)], [(1, 3)], [(0, 3)], [(1, 2)]]
    """
    host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
    found: list[list[Pair]] = []
    for stage in _stages(hosts):
        if len(found) >= most:
            break
        found += packed(stage, host_of)
    return found[:most]


def packed(pairs: Sequence[Pair], host_of: dict[int, int]) -> list[list[Pair]]:
    """These pairs, each in the first round in which its hosts are free."""
    found: list[list[Pair]] = []
    busy: list[set[int]] = []
    for a, b in pairs:
        hosts = {host_of[a], host_of[b]}
        at = next((i for i, taken in enumerate(busy) if not taken & hosts), len(found))
        if at == len(found):
            found.append([])
            busy.append(set())
        found[at].append((a, b))
        busy[at] |= hosts
    return found


def _stages(hosts: Sequence[Sequence[int]]) -> Iterator[list[Pair]]:
    """One pair of every two hosts and one inside every host, then the next ones, until all have been."""
    between = [_between(a, b) for a, b in combinations(hosts, 2)]
    inside = [combinations(ranks, 2) for ranks in hosts]
    while True:
        stage = [pair for each in [*between, *inside] if (pair := next(each, None)) is not None]
        if not stage:
            return
        yield stage


def _between(a: Sequence[int], b: Sequence[int]) -> Iterator[Pair]:
    """Each rank of a with each of b; a rank does not come again before the others have come."""
    for shift in range(max(len(a), len(b))):
        for i in range(min(len(a), len(b))):
            first, second = (i, i + shift) if len(a) <= len(b) else (i + shift, i)
            yield a[first % len(a)], b[second % len(b)]
