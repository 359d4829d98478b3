"""Calls under the stopwatch: all ranks begin together, and a call is as slow as its slowest rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from hocket.collectives.measuring.comm import Comm


def turn(comm: Comm, call: Callable[[], Any], calls: int, warm: int = 2) -> float:
    """Seconds of a call, on this rank; `warm` calls before make the plan and warm the caches."""
    for _ in range(warm):
        call()
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def slowest(comm: Comm, seconds: Sequence[float]) -> list[float]:
    """The time of the slowest rank, for each time; the same on all ranks."""
    longest: list[float] = comm.allreduce(numpy.array(seconds), "max").tolist()
    return longest
