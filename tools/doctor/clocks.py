"""How far the clocks of hosts are from rank 0's: as NTP does it, by the shortest of some round trips."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from hocket.collectives.communicator.communicator import Communicator

TRIES = 16
TAG = 2


class Offset(NamedTuple):
    """Of a host's clock."""

    seconds: float
    """More than 0: it is ahead of rank 0's host."""
    bound: float
    """The truth is no farther away from it: half of the round trip."""


def offset(comm: Communicator, rank: int) -> Offset | None:
    """Ask `rank`.  That rank and rank 0, which gets the answer, call this."""
    theirs = np.zeros(1, np.int64)
    found = []
    for _ in range(TRIES):
        if comm.rank == 0:
            before = time.time_ns()
            comm.send(theirs, rank, TAG)
            comm.recv(theirs, rank, TAG)
            after = time.time_ns()
            found.append((after - before, int(theirs[0]) - (before + after) / 2))
        else:
            comm.recv(theirs, 0, TAG)
            theirs[0] = time.time_ns()
            comm.send(theirs, 0, TAG)
    if comm.rank:
        return None
    trip, ahead = min(each for each in found if each[0] >= 0)
    return Offset(ahead / 1e9, trip / 2e9)
