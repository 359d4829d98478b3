"""`Communicator.tune`: every algorithm under the stopwatch, all ranks together.

For each collective and size the algorithms take turns (A B C A B C); a turn is as slow as its slowest rank, the median
turn counts.  An algorithm that one call shows to be far from the best gets no turns.  What is called is the ordinary
call on ordinary arrays of float32, sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy

from hocket.algorithms.library import LIBRARIES
from hocket.algorithms.tuning import Point, Tuning, candidates
from hocket.bench.cases import COLLECTIVES, case
from hocket.bench.ours import call_of
from hocket.collectives.cores import usable_cores
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.collectives.communicator import Communicator

TUNED = tuple(name for name in COLLECTIVES if name != "barrier")
"""A barrier is an allreduce of nothing."""
SIZES = (8, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
TURNS = 5
FIRST, LOOKS, SMALL = 10, 3, 64 << 10
"""Calls of a first look at an algorithm, and how many looks; of vectors longer than SMALL one of each is enough."""
HOPELESS = 3.0
"""So many times slower than the best at the first looks: no turns."""
MOST_CALLS = 500
"""In a turn."""


def tune(comm: Communicator, collectives: Iterable[str], sizes: Sequence[int], seconds: float) -> Tuning:
    """What `comm.tune` returns: the points of this communicator's layout, the same on all ranks."""
    chosen = list(dict.fromkeys(collectives))
    for name in chosen:
        if name not in TUNED:
            raise ArgumentError(f"tune: {name!r} is none of {', '.join(TUNED)}")
    if not sizes or not seconds > 0 or min(sizes) < 1:
        raise ArgumentError(f"tune: sizes={list(sizes)} and seconds={seconds!r} must be positive")
    if comm.world.config.algorithm:
        raise ArgumentError("tune: HOCKET_ALGORITHM names the algorithms to use; unset it to have them measured")
    before, layout = comm.tuning, comm._main.layout
    share = seconds / (len(chosen) * len(sizes))
    points = []
    try:
        for name in chosen:
            able = candidates(name, layout, libraries=LIBRARIES if comm.world.mpi_everywhere else ())
            for nbytes in sorted(set(sizes)):
                found, real = times(comm, name, nbytes, able, share)
                points.append(Point(name, layout, real, found))
    finally:
        comm.retune(before)
    cores = int(comm.allreduce(numpy.array([usable_cores()]), "min")[0])
    return Tuning(points, cores)


def times(
    comm: Communicator, collective: str, nbytes: int, names: Sequence[str], seconds: float
) -> tuple[dict[str, float], int]:
    """Seconds of a call by algorithm, on all ranks the same; and the bytes that were taken, as near as they divide."""
    what = case(collective, comm.size, nbytes, "float32", "sum", 0)
    given, result = (numpy.zeros(what.elements(which), numpy.float32) if which else None for which in what.kind[1:3])
    call = call_of(comm, what, given, result)
    few, looks = (FIRST, LOOKS) if nbytes <= SMALL else (1, 1)
    seen = [[_turn(comm, collective, name, call, few) for name in names] for _ in range(looks)]
    first = _slowest(comm, [min(each) for each in zip(*seen, strict=True)])
    best = min(first)
    serious = [i for i, t in enumerate(first) if t < HOPELESS * best or t == best]
    calls = [max(1, min(MOST_CALLS, int(seconds / len(serious) / TURNS / first[i]))) for i in serious]
    plan = [(names[i], n) for i, n in zip(serious, calls, strict=True)]
    slowest = [_slowest(comm, [_turn(comm, collective, name, call, n) for name, n in plan]) for _ in range(TURNS)]
    found = dict(zip(names, first, strict=True))
    found |= {names[i]: median(turn[k] for turn in slowest) for k, i in enumerate(serious)}
    return found, max(1, what.nbytes)


def _turn(comm: Communicator, collective: str, name: str, call: Callable[[], Any], calls: int) -> float:
    """Seconds of a call, on this rank; two calls before make the plan and warm the caches."""
    comm.retune(comm.tuning, (collective, name))
    call()
    call()
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def _slowest(comm: Communicator, seconds: Sequence[float]) -> list[float]:
    found: list[float] = comm.allreduce(numpy.array(seconds), "max").tolist()
    return found
