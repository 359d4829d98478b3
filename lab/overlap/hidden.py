"""Starting, overlapping, joining: what asynchronous calls and a start of the library cost.

    hocket run -n 2 -- python -m hocket.lab.overlap.hidden [--transport tcp] [--bytes 16M]

`start` is how long `async_op=True` takes to return, calls one after the other.  `overlap` is how much of the shorter of
the two is hidden when a call and a computation run at once: (call + compute - both) / min(call, compute).  Computing is
once a sleep (a device computes, this rank's core is free for the call), once arithmetic on this core; then nothing can
be hidden, and `loss` is how much longer both take together than one after the other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy

import hocket
from hocket.bench.harness.table import micro
from hocket.bench.rivals.ours import timed
from hocket.lab.program import arguments

TIMES = 21
STARTS = 1000


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.overlap.hidden", __doc__, argv, transport="tcp", bytes=16 << 20)
    with hocket.init(transport=options.transport) as comm:
        tell = print if comm.rank == 0 else lambda text: None
        tell(f"{comm.size} ranks, {options.transport}\n\n| what | us | share |\n|---|---|---|")
        tell(f"| start of an asynchronous allreduce, 8 B | {micro(_start(comm))} | |")
        x = numpy.zeros(options.bytes // 4, numpy.float32)
        call = timed(comm, lambda: comm.allreduce(x), TIMES)
        tell(f"| allreduce, {options.bytes >> 20} MiB, alone | {micro(call)} | |")
        for what, compute in (("a sleep", lambda: time.sleep(call)), ("arithmetic", _arithmetic(call))):
            alone = timed(comm, compute, TIMES)
            both = timed(comm, partial(_at_once, comm, x, compute), TIMES)
            hidden = (call + alone - both) / min(call, alone)
            loss = both / (call + alone) - 1
            tell(f"| ... with {what} of {micro(alone)} us | {micro(both)} | overlap {hidden:.0%}, loss {loss:.0%} |")
    return 0


def _start(comm: hocket.Communicator) -> float:
    """Median seconds until a call returns, on the slowest rank."""
    x, clock, seconds = numpy.zeros(2, numpy.float32), time.perf_counter, []
    for _ in range(STARTS):
        comm.barrier()
        begin = clock()
        work = comm.allreduce(x, async_op=True)
        seconds.append(clock() - begin)
        work.wait()
    return float(comm.allreduce(numpy.array([median(seconds)]), "max")[0])


def _at_once(comm: hocket.Communicator, x: numpy.ndarray, compute: Callable[[], object]) -> None:
    work = comm.allreduce(x, async_op=True)
    compute()
    work.wait()


def _arithmetic(seconds: float) -> Callable[[], object]:
    """About so many seconds of work in the caches of one core; its amount is fixed here, by the clock."""
    a = numpy.ones(4096, numpy.float32)
    begin, n = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        numpy.sqrt(a, a)
        n += 1

    def compute() -> None:
        for _ in range(n):
            numpy.sqrt(a, a)

    return compute


if __name__ == "__main__":
    sys.exit(main())
