"""Read messages in the sender's memory, or pass them through slots of shared memory?

    hocket run -n 2 -- python -m hocket.bench.reading

Prints microseconds of both, by the bytes of a message: of an allgather and an alltoall, whose messages are only moved,
and of an allreduce.  `hocket tune` decides by the same measurement.  How long a cache line takes to the other core and
back is told by `python -m hocket.bench.circles`.
"""

from __future__ import annotations

import sys
from statistics import median

import hocket
from hocket.arguments import human
from hocket.collectives.tuning.reads import times

SIZES = [1 << n for n in range(15, 25)]
KINDS = {"allgather": "moved", "alltoall": "moved", "allreduce": "reduced"}
TURNS = 3


def main() -> int:
    comm = hocket.init()
    if comm.membership.main.readable is None:
        raise hocket.ArgumentError("all ranks must be on one host, and be able to read each other's memory")
    if comm.rank == 0:
        print("| a message | " + " | ".join(f"{name}: slots | reading" for name in KINDS) + " |")
        print("|" + "---|" * (1 + 2 * len(KINDS)), flush=True)
    for nbytes in SIZES:
        cells = []
        for name, kind in KINDS.items():
            turns = [times(comm, name, kind, nbytes) for _ in range(TURNS)]
            comm.runner.retune(comm.tuning)  # the usual rule again
            cells += [f"{median(each) * 1e6:.0f}" for each in zip(*turns, strict=True)]
        if comm.rank == 0:
            print(f"| {human(nbytes)} | {' | '.join(cells)} |", flush=True)
    comm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
