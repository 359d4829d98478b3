"""Ranks that leave the job while others go on: which calls still need them.

A rank that leaves says how many calls it has finished on each communicator.  All that it had to send for those is on
its way, so the others may finish them too; in a later call they would wait in vain.  Messages are not counted: those
sent before have arrived where the ranks share memory, and over sockets they get a moment to arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from hocket.collectives.plans.plan import Plan

HAS_LEFT = "it has left the job (closed its communicator or exited)"
RENEWS = "it has called renew()"
ARRIVAL_WAIT = 2.0
"""Seconds of waiting after which a rank that has left counts as missing, where nothing says that all has arrived."""


LATEST = 4
"""Calls that a rank tells of when it leaves."""


class Parted(Exception):
    """Within the library: a rank that has left has finished another call in the place of this one."""


class HasLeft(Exception):
    """Within the library: a call waits for these ranks of its communicator, and they have left."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks


def missed_in_collective(number: int, finished: Mapping[int, int | None], seconds: float) -> list[int]:
    """The ranks that call `number` waits for in vain after `seconds`.  `finished`: by rank; None if it did not say."""
    return sorted(r for r, last in finished.items() if (seconds > ARRIVAL_WAIT if last is None else number > last))


def missed_in_messages(calls: Iterable[Plan | None], left: Set[int]) -> list[int]:
    """The same for sends and receives.  A recv from any rank waits in vain only if all of these have left."""
    for call in calls:
        gone = call.peers & left if call is not None else frozenset()
        if call is not None and gone and (call.collective != "recv" or gone == call.peers):
            return sorted(gone)
    return []
