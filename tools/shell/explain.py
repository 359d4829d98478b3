"""`hocket explain -n 4 allreduce 1M`: which transports and algorithms a job uses, and why.

With -n it starts the ranks here; without, it is a rank of the job that a launcher started, and rank 0 speaks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hocket.collectives.measuring.cases import parse_size
from hocket.errors import ArgumentError, Error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line behind `hocket explain`.  0; 1: the job failed; 2: bad arguments."""
    made = argparse.ArgumentParser(prog="hocket explain", description=__doc__.split("\n")[0], allow_abbrev=False)
    add = made.add_argument
    add("collective", nargs="?", metavar="COLLECTIVE", help="allreduce, allgather, ...; all of them without it")
    add("bytes", nargs="?", metavar="BYTES", help="of the whole vector: 8, 64K, 1M (powers of 1024)")
    add("-n", "--ranks", type=int, metavar="N", help="start this many ranks on this machine")
    options = made.parse_args(argv)
    try:
        size = None if options.bytes is None else parse_size(options.bytes)
    except ArgumentError as why:
        made.error(str(why))
    if options.ranks is not None:
        from hocket.tools.run import main as run

        rest = [each for each in (options.collective, options.bytes) if each is not None]
        return run(["-n", str(options.ranks), "--", sys.executable, "-m", "hocket", "explain", *rest])
    import hocket

    try:
        with hocket.init() as comm:
            said = comm.explain(options.collective, size)
            if comm.rank == 0:
                print(said)
    except Error as why:
        print(f"hocket explain: {why}", file=sys.stderr)
        return 1
    return 0
