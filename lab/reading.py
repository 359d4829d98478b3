"""Read messages in the sender's memory, or pass them through slots of shared memory?

    hocket run -n 2 -- python -m hocket.lab.reading [--end 16M]

Prints microseconds of each way, and of the one that the ranks choose, by the bytes of a message: of an allgather and
an alltoall, whose messages are only moved, and of an allreduce.  `hocket tune` decides by such a measurement, and ranks
by what their calls take (collectives/plans/weigh.h).  How long a cache line takes to the other core and back is told by
`python -m hocket.lab.memory.circles`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import median

import hocket
from hocket.arguments import human
from hocket.collectives.choice.tuning import Reads
from hocket.collectives.measuring.cases import arrays, call_of, case
from hocket.collectives.measuring.timing import slowest, turn
from hocket.lab.program import arguments

BEGIN, END = 32 << 10, 16 << 20
"""Bytes of a message; each further one has twice as many."""
COLLECTIVES = ("allgather", "alltoall", "allreduce")
WAYS = {"slots": Reads(None, None), "reading": Reads(BEGIN, BEGIN), "as chosen": None}
TURNS, CALLS = 9, 25
"""Turns of each way; calls of one."""


def sizes(end: int) -> Iterator[int]:
    nbytes = BEGIN
    while nbytes <= end:
        yield nbytes
        nbytes *= 2


def communicators(comm: hocket.Communicator) -> list[hocket.Communicator]:
    """One for each way."""
    made = [comm.dup() for _ in WAYS]
    for each, rule in zip(made, WAYS.values(), strict=True):
        each.membership.main.read_from(rule)
    return made


def times(comms: Sequence[hocket.Communicator], collective: str, nbytes: int) -> list[float]:
    """Microseconds of a call whose messages have so many bytes, each way."""
    what = case(collective, comms[0].size, nbytes * comms[0].size, "float32", "sum", 0)
    given, result = arrays(what)
    calls = [call_of(comm, what, given, result) for comm in comms]
    rows = [slowest(comms[0], [turn(comm, call, CALLS) for comm, call in zip(comms, calls, strict=True)])
            for _ in range(TURNS)]  # fmt: skip
    return [median(each) * 1e6 for each in zip(*rows, strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.reading", __doc__, argv, end=END)
    comm = hocket.init()
    if comm.membership.main.readable is None:
        raise hocket.ArgumentError("all ranks must be on one host, and be able to read each other's memory")
    comms = communicators(comm)
    if comm.rank == 0:
        print("| a message | " + " | ".join(f"{name}: {' | '.join(WAYS)}" for name in COLLECTIVES) + " |")
        print("|" + "---|" * (1 + len(WAYS) * len(COLLECTIVES)), flush=True)
    for nbytes in sizes(options.end):
        cells = [f"{each:.0f}" for name in COLLECTIVES for each in times(comms, name, nbytes)]
        if comm.rank == 0:
            print(f"| {human(nbytes)} | {' | '.join(cells)} |", flush=True)
    comm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
