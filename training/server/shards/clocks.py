"""When a pull may be answered: BSP, SSP and asynchronous training are one rule with another bound.

A worker's clock counts its `tick`s.  A pull of a worker at clock c waits until the slowest worker's clock is at least
c - s; so it sees every update of clocks <= c - s - 1.  BSP is s = 0, SSP (Ho et al., NIPS 2013) s > 0, and "async" has
no bound.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container

from hocket.arguments import whole
from hocket.errors import ArgumentError


def staleness(clock: str) -> float:
    """The bound s of "bsp", "ssp:s" and "async".

    >>> staleness("bsp"), staleness("ssp:3"), staleness("async")
    (0, 3, inf)
    """
    name, _, bound = clock.partition(":") if isinstance(clock, str) else (None, "", "")
    if name == "ssp" and bound.isdigit():
        return whole(int(bound), "clock")
    if name in ("bsp", "async") and not bound:
        return 0 if name == "bsp" else math.inf
    raise ArgumentError(f'clock={clock!r} must be "bsp", "ssp:s" with a whole number s, or "async"')


class Clocks:
    """The workers' clocks on one shard."""

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.at: dict[int, int] = {}

    @property
    def slowest(self) -> int:
        """0 where nobody works."""
        return min(self.at.values(), default=0)

    def may_read(self, clock: int) -> bool:
        """May a pull at this clock be answered?"""
        return self.slowest >= clock - self.bound

    def set(self, worker: int, clock: int | None) -> None:
        """A worker's clock, which never goes back; None: it has left."""
        if clock is None:
            self.at.pop(worker, None)
        else:
            self.at[worker] = max(clock, self.at.get(worker, 0))

    def keep(self, workers: Collection[int], known: Container[int] = ()) -> None:
        """These work: others are gone, and who is new is as far as the slowest.

        `known`: who has had a clock.  Without one now it has left, or is about to greet and to say its own.
        """
        self.at = {worker: clock for worker, clock in self.at.items() if worker in workers}
        slowest = self.slowest
        self.at.update({worker: slowest for worker in workers if worker not in self.at and worker not in known})
