"""The distance of hosts' wall clocks from rank 0's."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from hocket.collectives.communicator.communicator import Communicator
from hocket.observe.clocks import Clock, gates
from hocket.observe.pinging import ping

TRIES = 16


class Offset(NamedTuple):
    """The offset of a host's clock."""

    seconds: float
    """More than 0: it is ahead of rank 0's host."""
    bound: float
    """The truth is no farther away from it, if the clock was not set meanwhile."""


def offset(comm: Communicator, rank: int) -> Offset | None:
    """`rank` asks rank 0.  Both call this; rank 0 gets the answer."""
    found = np.zeros(2)
    pings = ping(comm, [rank], TRIES, time.time_ns)
    if comm.rank == rank:
        clock, now = Clock.fit(gates(pings)), pings[-1].t4
        found[:] = -clock.offset(now) / 1e9, clock.error(now) / 1e9
        comm.send(found, 0)
        return None
    comm.recv(found, rank)
    return Offset(*found.tolist())
