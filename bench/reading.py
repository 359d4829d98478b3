"""Read messages in the sender's memory, or pass them through slots of shared memory?

    hocket run -n 2 -- python -m hocket.bench.reading [--end 16M]

Prints microseconds of both, by the bytes of a message: of an allgather and an alltoall, whose messages are only moved,
and of an allreduce.  `hocket tune` decides by the same measurement.  How long a cache line takes to the other core and
back is told by `python -m hocket.bench.memory.circles`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from statistics import median

import hocket
from hocket.arguments import human
from hocket.collectives.choice.cases import parse_size
from hocket.collectives.choice.reads import times

BEGIN, END = 32 << 10, 16 << 20
"""Bytes of a message; each further one has twice as many."""
KINDS = {"allgather": "moved", "alltoall": "moved", "allreduce": "reduced"}
TURNS = 3


def sizes(end: int) -> Iterator[int]:
    nbytes = BEGIN
    while nbytes <= end:
        yield nbytes
        nbytes *= 2


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="python -m hocket.bench.reading", description=__doc__.split("\n")[0])
    made.add_argument("--end", type=parse_size, default=END, metavar="BYTES", help="(16M)")
    options = made.parse_args(argv)
    comm = hocket.init()
    if comm.membership.main.readable is None:
        raise hocket.ArgumentError("all ranks must be on one host, and be able to read each other's memory")
    if comm.rank == 0:
        print("| a message | " + " | ".join(f"{name}: slots | reading" for name in KINDS) + " |")
        print("|" + "---|" * (1 + 2 * len(KINDS)), flush=True)
    for nbytes in sizes(options.end):
        cells = []
        for name, kind in KINDS.items():
            turns = [times(comm, name, kind, nbytes) for _ in range(TURNS)]
            comm.retune(comm.tuning)  # the usual rule again
            cells += [f"{median(each) * 1e6:.0f}" for each in zip(*turns, strict=True)]
        if comm.rank == 0:
            print(f"| {human(nbytes)} | {' | '.join(cells)} |", flush=True)
    comm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
