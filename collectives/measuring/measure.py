"""`Communicator.tune`: every algorithm under the stopwatch, all ranks together.

For each collective and size the algorithms take turns (A B C A B C); a turn is as slow as its slowest rank, the median
turn counts.  An algorithm that one call shows to be far from the best gets no turns.  What is called is the ordinary
call on ordinary arrays of float32, sum.  Long vectors come first.  If one
call of each algorithm takes more than their share of the time, the short ones, which need less, get less.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import numpy

from hocket.collectives.choice.fabric import candidates
from hocket.collectives.choice.tuning import Point, Tuning
from hocket.collectives.delegates.libraries import CHOSEN
from hocket.collectives.measuring import busy, reads
from hocket.collectives.measuring.cases import COLLECTIVES, arrays, call_of, case
from hocket.collectives.measuring.comm import Comm
from hocket.collectives.measuring.timing import slowest, turn
from hocket.errors import ArgumentError
from hocket.system.cores import usable_cores

TUNED = tuple(name for name in COLLECTIVES if name != "barrier")
"""A barrier is an allreduce of nothing."""
SIZES = (8, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
TURNS = 5
FIRST, LOOKS, SMALL = 10, 3, 64 << 10
"""Calls of a first look at an algorithm, and how many looks; of vectors longer than SMALL one of each is enough."""
LEAST = 0.2
"""The part of its share that each size gets in any case."""
HOPELESS = 3.0
"""An algorithm so many times slower than the best at the first looks gets no turns."""
SHORT = 1e-3
"""Seconds of a call that is worth FIRST more, even if it seems hopeless: a first one is slower than those behind it."""
MOST_CALLS = 500
"""In a turn."""
log = logging.getLogger("hocket")


def check(collectives: Iterable[str], sizes: Sequence[int], seconds: float) -> None:
    """Raise ArgumentError for what cannot be tuned."""
    for name in collectives:
        if name not in TUNED:
            raise ArgumentError(f"tune: {name!r} is not one of {', '.join(TUNED)}")
    if not sizes or not seconds > 0 or min(sizes) < 1:
        raise ArgumentError(f"tune: sizes={list(sizes)} and seconds={seconds!r} must be positive")


def tune(comm: Comm, collectives: Iterable[str], sizes: Sequence[int], seconds: float) -> Tuning:
    """Measure for `comm.tune`: the points of this communicator's layout, the same on all ranks."""
    tuning, disturbed = measured(comm, collectives, sizes, seconds)
    if disturbed and comm.rank == 0:
        log.warning("tune: %s, so what was measured is partly noise: measure again when it is idle", disturbed)
    return tuning


def measured(
    comm: Comm, collectives: Iterable[str], sizes: Sequence[int], seconds: float
) -> tuple[Tuning, str]:
    """The points, and how other work disturbed the measuring, in words ("": it did not)."""
    chosen = list(dict.fromkeys(collectives))
    check(chosen, sizes, seconds)
    if comm.world.config.algorithm:
        raise ArgumentError("tune: HOCKET_ALGORITHM names the algorithms to use; unset it to have them measured")
    before, layout = comm.tuning, comm.membership.main.layout
    cases = [(name, nbytes) for nbytes in sorted(set(sizes), reverse=True) for name in chosen]
    points, start = [], busy.look()
    try:
        rule = reads.measured(comm) if seconds >= reads.WORTH else None
        if rule is not None:
            comm.runner.retune(before + Tuning(cores=before.cores, reads=rule))
        for done, (name, nbytes) in enumerate(cases):
            able = candidates(name, layout, libraries=CHOSEN if comm.world.mpi_everywhere else ())
            (spent,) = slowest(comm, [time.monotonic() - start.at])
            share = max(LEAST * seconds / len(cases), (seconds - spent) / (len(cases) - done))
            by_algorithm, real = times(comm, name, nbytes, list(able), share)
            points.append(Point(name, layout, real, by_algorithm))
    finally:
        comm.runner.retune(before)
    disturbed = busy.sentence(*busy.taken(comm, start))
    cores = int(comm.allreduce(numpy.array([usable_cores()]), "min")[0])
    return Tuning(points, cores, reads=rule), disturbed


def times(
    comm: Comm, collective: str, nbytes: int, names: Sequence[str], seconds: float
) -> tuple[dict[str, float], int]:
    """Seconds of a call by algorithm, on all ranks the same; and the bytes that were taken, as near as they divide.

    `seconds`: about how long; two calls of each algorithm are made in any case, and only the second is timed.
    """
    what = case(collective, comm.size, nbytes, "float32", "sum", 0)
    given, result = arrays(what)
    call = call_of(comm, what, given, result)
    begin = time.monotonic()
    small, spent = nbytes <= SMALL, 0.0
    first = [math.inf] * len(names)
    for _ in range(LOOKS if small else 1):
        if spent < seconds / 2:
            seen = _look(comm, collective, names, call, FIRST if small else 1)
            first = [min(each) for each in zip(first, seen, strict=True)]
            (spent,) = slowest(comm, [time.monotonic() - begin])
    best = min(first)
    serious = [i for i, t in enumerate(first) if t < HOPELESS * best or t == best]
    left, warm = max(0.0, seconds - spent), 2 if small else 1
    calls = [max(1, min(MOST_CALLS, int(left / len(serious) / TURNS / first[i]))) for i in serious]
    rounds = [(names[i], n) for i, n in zip(serious, calls, strict=True)]
    a_turn = sum((warm + n) * first[i] for i, n in zip(serious, calls, strict=True))
    turns = min(TURNS, round(left / a_turn))
    each_turn = [
        slowest(comm, [_turn(comm, collective, name, call, n, warm) for name, n in rounds]) for _ in range(turns)
    ]
    by_algorithm = dict(zip(names, first, strict=True))
    if each_turn:
        by_algorithm |= {names[i]: median(each[k] for each in each_turn) for k, i in enumerate(serious)}
    return by_algorithm, max(1, what.nbytes)


def _look(
    comm: Comm, collective: str, names: Sequence[str], call: Callable[[], Any], calls: int
) -> list[float]:
    """Seconds of a call of each algorithm, on the slowest rank.  Of a long hopeless one a single call is timed.

    The call that makes the plan is never timed: a plan takes longer than hundreds of short calls.
    """
    seen: list[float] = []
    for name in names:
        comm.runner.retune(comm.tuning, (collective, name))
        call()
        for n in dict.fromkeys((1, calls)):
            comm.barrier()
            start = time.perf_counter()
            for _ in range(n):
                call()
            (seconds,) = slowest(comm, [(time.perf_counter() - start) / n])
            if seen and seconds > max(SHORT, HOPELESS * min(seen)):
                break
        seen.append(seconds)
    return seen


def _turn(comm: Comm, collective: str, name: str, call: Callable[[], Any], calls: int, warm: int = 2) -> float:
    """Seconds of a call by this algorithm, on this rank."""
    comm.runner.retune(comm.tuning, (collective, name))
    return turn(comm, call, calls, warm)
