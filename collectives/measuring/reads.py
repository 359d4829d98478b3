"""From how many bytes do ranks of this host read each other's memory?  Both ways under the stopwatch, in turns.

Messages go through slots of shared memory, or a rank reads them where they lie, by a system call that copies once.
Which is faster depends on the CPU: on its caches, and on how its cores reach each other's.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from hocket.collectives.choice.tuning import Reads
from hocket.collectives.measuring.cases import arrays, call_of, case
from hocket.collectives.measuring.comm import Comm
from hocket.collectives.measuring.timing import slowest, turn

SIZES = (32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20)
"""Bytes of a message that are tried.  All are more than what is always copied."""
WAYS = {"moved": "allgather", "reduced": "allreduce"}
"""Its bytes are for this; and the collective that shows it."""
TURNS, SECONDS = 5, 0.002
"""Turns of each way, and about how long one takes."""
GAIN = 0.95
"""Reading must take so much less, at a size and at all larger ones."""
NEVER = None
WORTH = 1.0
"""Seconds of a tuning that finds the time for this."""


def measured(comm: Comm) -> Reads | None:
    """The rule of this communicator's host, on all ranks the same.  None: it is not one host that can tell.

    Where ranks find out while they call (plans/weigh.h), of what is only moved nothing is measured here.
    Ranks that outnumber the cores tell nothing: the order in which the system runs them decides.  Takes some 0.3 s.
    """
    if comm.membership.main.readable is None or comm.world.cores.crowded or comm.size == 1:
        return None
    before, usual = comm.tuning, Reads(*comm.membership.main.readable.usual[0])
    try:
        names = list(WAYS) if usual.tried_moved is None or usual.slots_are_slow else ["reduced"]
        return usual._replace(**{name: _first(comm, WAYS[name], name) for name in names})
    finally:
        comm.runner.retune(before)


def _first(comm: Comm, collective: str, name: str) -> int | None:
    """The least size from which on reading is faster."""
    least = NEVER
    for nbytes in reversed(SIZES):
        with_slots, by_reading = times(comm, collective, name, nbytes)
        if by_reading > GAIN * with_slots:
            break
        least = nbytes
    return least


def times(comm: Comm, collective: str, name: str, nbytes: int) -> tuple[float, float]:
    """Seconds of a call whose messages have so many bytes: through slots, and by reading."""
    what = case(collective, comm.size, nbytes * comm.size, "float32", "sum", 0)
    given, result = arrays(what)
    call = call_of(comm, what, given, result)
    rules = [Reads(NEVER, NEVER), Reads(NEVER, NEVER)._replace(**{name: SIZES[0]})]
    (once,) = slowest(comm, [turn(comm, call, 1)])
    calls = max(1, min(100, int(SECONDS / once)))
    seconds = [slowest(comm, [_turn(comm, rule, call, calls) for rule in rules]) for _ in range(TURNS)]
    with_slots, by_reading = (median(each) for each in zip(*seconds, strict=True))
    return with_slots, by_reading


def _turn(comm: Comm, rule: Reads, call: Callable[[], object], calls: int) -> float:
    comm.runner.retune(comm.tuning)  # plans depend on the rule
    comm.membership.main.read_from(rule)
    return turn(comm, call, calls)
