"""Tell how busy a machine was with other work while a job measured there; told beside the times.

From /proc/stat: the time that its cores worked, less the time of the job's ranks; and the time the hypervisor took.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import numpy

from hocket.collectives.measuring.comm import Comm

MUCH = 0.1
"""Part of a machine's cores: beyond it, medians of short measurements move (a busy loop beside 2 ranks on 2 cores)."""


class Look(NamedTuple):
    """Seconds of all cores together, since the machine was started, and of this process."""

    at: float
    used: float
    stolen: float
    own: float


def look() -> Look:
    """The work of this machine until now; zeros where the system does not tell."""
    tick = os.sysconf("SC_CLK_TCK")
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, interrupts, soft, stolen = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        user = nice = system = interrupts = soft = stolen = 0
    times = os.times()
    used = (user + nice + system + interrupts + soft) / tick
    return Look(time.monotonic(), used, stolen / tick, times.user + times.system)


def taken(comm: Comm, before: Look) -> tuple[float, float]:
    """(part of the cores used by others than these ranks, part stolen by the hypervisor), since `before`.

    The largest parts of any host; the same on all ranks.  Collective.
    """
    now = look()
    own = numpy.array([[comm.host, now.own - before.own]])
    rows = comm.allgather(own)
    ours = rows[rows[:, 0] == comm.host, 1].sum()
    capacity = (os.cpu_count() or 1) * max(now.at - before.at, 1e-3)
    parts = numpy.array([now.used - before.used - ours, now.stolen - before.stolen]) / capacity
    parts = numpy.clip(parts, 0.0, 1.0)  # the clocks tick in hundredths
    others, stolen = comm.allreduce(parts, "max").tolist()
    return others, stolen


def sentence(others: float, stolen: float) -> str:
    """In words, if it is much; else ""."""
    if others + stolen < MUCH:
        return ""
    also = f", the hypervisor {stolen:.0%}" if stolen >= 0.01 else ""
    return f"the machine is busy: other processes take {others:.0%} of its cores{also}"
