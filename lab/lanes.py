"""Does a small call on a lane overtake a long one that is under way?

    hocket run -n 2 -- python -m hocket.lab.lanes [--small 64K] [--large 64M]

Seconds of a blocking allreduce of `small`: alone; while an asynchronous one of `large` is under way on the same
communicator, behind which it waits; and on a lane of a higher priority.  The slowest rank's median.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy

import hocket
from hocket.bench.harness.table import micro
from hocket.lab.program import arguments

ROUNDS = 15
CALLS = 10
"""Small calls beside a large one."""


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.lanes", __doc__, argv, small=64 << 10, large=64 << 20)
    with hocket.init() as comm:
        urgent = comm.lane("urgent", priority=1)
        small, large = (numpy.zeros(n // 4, numpy.float32) for n in (options.small, options.large))
        alone = _seconds(comm, small, None, None, 100)
        behind = _seconds(comm, small, comm, large, 1)
        beside = _seconds(urgent, small, comm, large, CALLS)
        if comm.rank == 0:
            print(f"| {comm.size} ranks, allreduce of {options.small:,} B | us | x alone |\n|---|---|---|")
            for what, seconds in (("alone", alone), ("on a lane", beside), ("without lanes", behind)):
                print(f"| {what} | {micro(seconds)} | {seconds / alone:.1f} |")
    return 0


def _seconds(
    comm: hocket.Communicator, small: numpy.ndarray, under: hocket.Communicator | None, large: numpy.ndarray | None,
    calls: int,
) -> float:  # fmt: skip
    """Seconds of one small call: the median, of those that ended before the large one did if there is one."""
    found = []
    for _ in range(ROUNDS):
        comm.barrier()
        work = under.allreduce(large, async_op=True) if under is not None else None
        for _ in range(calls):
            begin = time.perf_counter()
            comm.allreduce(small)
            seconds = time.perf_counter() - begin
            if work is None or under is comm or not work.done():
                found.append(seconds)
        if work is not None:
            work.wait()
    mine = numpy.median(found) if found else numpy.inf  # none ended in time
    return float(comm.allreduce(numpy.array([mine]), "max")[0])


if __name__ == "__main__":
    sys.exit(main())
