"""A communicator's lanes: the same ranks, with orders of calls of their own and priorities."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from hocket.arguments import whole
from hocket.collectives.base.groups import at_once
from hocket.collectives.communicator.runner import Runner
from hocket.collectives.failures.reporting import Reporter
from hocket.collectives.job.world import World
from hocket.collectives.members.members import Members
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator

HIGHEST = 1000
"""The highest priority of a lane; the lowest is -HIGHEST."""


class Laned:
    """The part of `Communicator` that makes lanes."""

    world: World
    name: str
    membership: Members
    reporter: Reporter
    runner: Runner
    _serial: int
    _lanes: dict[str, Communicator]

    @at_once
    def lane(self, name: str, priority: int = 0) -> Communicator:
        """The communicator of the same ranks whose calls are ordered among themselves, but not with those made here.

        So a small urgent call need not wait for a long one that is under way: asynchronous calls on lanes of a higher
        `priority` are served first at every step, and a long call goes on with its next piece when they cannot move.
        (MPI users dup communicators, which have no priorities.)  This communicator has priority 0.

        All ranks make a lane together, at the first use of its name; later uses return the same lane.  It is closed by
        itself, or with the job; then its name stands for a new lane.  Raises ArgumentError if the ranks' priorities
        differ, or if the lane has another one.  Cost: two allgathers, the first time.

        >>> import hocket, numpy as np
        >>> def both(comm):
        ...     bulk = comm.allreduce(np.ones(1 << 20), async_op=True)
        ...     flag = comm.lane("urgent", priority=1).allreduce(np.ones(1))     # does not wait for the first
        ...     return int(flag[0]), int(bulk.result()[0])
        >>> hocket.local_world(2).run(both)[0]
        (2, 2)
        """
        return self.lanes({name: priority})[0]

    @at_once
    def lanes(self, priorities: Mapping[str, int]) -> list[Communicator]:
        """The lanes of these names, with these priorities, as `lane` makes them one by one.

        All ranks give the same names in the same order.  Raises as `lane` does; ArgumentError or MismatchError where
        they do not.  Cost: two allgathers for all of them that are new; a pair of ranks connects at its first call on
        a lane.

        >>> import hocket, numpy as np
        >>> def both(comm):
        ...     urgent, bulk = comm.lanes({"urgent": 1, "bulk": -1})
        ...     works = [lane.allreduce(np.ones(3), async_op=True) for lane in (bulk, urgent)]
        ...     return [int(work.result()[0]) for work in works]
        >>> hocket.local_world(2).run(both)[0]
        [2, 2]
        """
        wanted = {_name(name): _priority(priority) for name, priority in priorities.items()}
        self._lanes = self._open_lanes()
        for name, priority in wanted.items():
            lane = self._lanes.get(name)
            if lane is not None and lane.membership.priority != priority:
                has = lane.membership.priority
                raise ArgumentError(f"lane({name!r}) was made with priority {has}, not {priority}")
        if new := {name: priority for name, priority in wanted.items() if name not in self._lanes}:
            self._lanes |= self._make_lanes(new)
        return [self._lanes[name] for name in wanted]

    def _make_lanes(self, wanted: Mapping[str, int]) -> dict[str, Communicator]:
        self.reporter.usable()
        within = f"lane({next(iter(wanted))!r})" if len(wanted) == 1 else f"lanes({reprlib.repr([*wanted])})"
        lanes = {name: self._lane(name, priority) for name, priority in wanted.items()}
        offers = [lane.membership.offer() for lane in lanes.values()]
        rows = self.runner.share([[*wanted.items()], offers], within)
        for r, (asked, _) in zip(self.membership.world_ranks, rows, strict=True):
            _compare(f"{within}{self.reporter.group.on}", [*wanted.items()], asked, r)
        for i, lane in enumerate(lanes.values()):
            lane.membership.accept([each[i] for _, each in rows])
        return lanes

    def _lane(self, name: str, priority: int) -> Communicator:
        self._serial += 1
        make = cast("type[Communicator]", type(self))
        its = self.membership
        return make(self.world, f"{self.name}/{self._serial}:{name}", its.world_ranks, its.tuning, priority)

    def _open_lanes(self) -> dict[str, Communicator]:
        """The lanes by name, without those that were closed."""
        return {name: lane for name, lane in self._lanes.copy().items() if not lane.reporter.closed}


def _compare(within: str, mine: list[tuple[str, int]], its: list[list[Any]], r: int) -> None:
    """ArgumentError: rank `r` of the job makes other lanes than this rank."""
    for (name, priority), (its_name, its_priority) in zip(mine, its, strict=False):
        if its_name != name:
            raise ArgumentError(f"{within}: rank {r} makes {its_name!r} where this rank makes {name!r}")
        if its_priority != priority:
            text = f"{within} has priority {priority} here and {its_priority} on rank {r}"
            raise ArgumentError(text if len(mine) == 1 else f"{text}: {name!r}")
    if len(its) != len(mine):
        raise ArgumentError(f"{within}: rank {r} makes {len(its)} lanes, this rank {len(mine)}")


def _name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"name={reprlib.repr(name)} must be a string")
    return name


def _priority(priority: int) -> int:
    priority = whole(priority, "priority")
    if abs(priority) > HIGHEST:
        raise ArgumentError(f"priority={priority} must be between -{HIGHEST} and {HIGHEST}")
    return priority
