"""Says once where a host's ranks have too few cores, as then they wait for cores more than for each other."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from hocket.system.run_delay import RunDelay

log = logging.getLogger("hocket")
EVERY = 30.0
"""Seconds between looks."""
SHARE = 0.5
"""The part of that time in which a rank's thread was ready to run without a core."""


def watch(later: Callable[[float, Callable[[], None]], object], rank: int, ranks: int) -> None:
    """Look at this process every 30 s until there is something to say.  50 us a look.

    `later(seconds, call)`: the reactor's.  `ranks`: how many this host has; its first one watches for all.
    """
    delay = RunDelay()

    def look() -> None:
        share = delay.share()
        if share < SHARE:
            later(EVERY, look)
        else:
            log.warning("%s", words(rank, ranks, share, len(os.sched_getaffinity(0))))

    later(EVERY, look)


def words(rank: int, ranks: int, share: float, cores: int) -> str:
    """The warning."""
    here = f"{ranks} rank{'s' * (ranks > 1)} on {cores} core{'s' * (cores > 1)}"
    beside = "" if ranks > cores else ", beside other programs"
    fewer = "start fewer ranks" if ranks > cores else "stop what else runs there, or start fewer ranks"
    return (
        f"rank {rank} was ready to run for {share * EVERY:.0f} of the last {EVERY:.0f} s and had no core: "
        f"{here}{beside}. Calls take longer than they need: {fewer}, and let each rank compute with one thread "
        f"(OMP_NUM_THREADS=1, torch.set_num_threads(1)). This is logged once."
    )
