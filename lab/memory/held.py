"""Memory of a rank: hocket's beside that of MPIs, as ranks become many.

    python -m hocket.lab.memory.held openmpi mpich [--ranks 2,64] [--bytes 16M]

Each rank is Python with NumPy and the library, mpi4py for an MPI, and sums one array of so many bytes; then all wait
and read their proportional sets (smaps_rollup): what ranks share counts for each by its part.  "before": behind a
barrier, with an array, before the sum.  The same without any library is Python's and NumPy's share.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from hocket.bench.rivals.launchers import mpirun
from hocket.collectives.measuring.cases import parse_size

PATIENCE = 600.0
RANK = """
import sys, numpy
x = numpy.ones({count}, numpy.float32)
{begin}
def held():
    barrier()
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    found = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    barrier()
    return found
barrier()
before = held()
add(x)
sys.stdout.write(f"held {{before}} {{held()}}\\n")
sys.stdout.flush()
barrier()
"""
OURS = "import hocket; comm = hocket.init(); barrier, add = comm.barrier, comm.allreduce"
MPIS = """from mpi4py import MPI
comm = MPI.COMM_WORLD
barrier, add = comm.Barrier, lambda x: comm.Allreduce(MPI.IN_PLACE, x)"""


def held(text: str, ranks: int, nbytes: int) -> tuple[float, float]:
    """MB of a rank, the median, before the sum and after it.  `text`: "hocket", or an MPI."""
    source = RANK.format(count=nbytes // 4, begin=OURS if text == "hocket" else MPIS)
    if text == "hocket":
        words, env = [sys.executable, "-m", "hocket", "run", "-n", str(ranks), "--no-prefix", "--"], dict[str, str]()
    else:
        words, env = mpirun(text, ranks)
    done = subprocess.run(
        [*words, sys.executable, "-c", source], env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("held ")]
    if len(rows) != ranks:
        raise RuntimeError(f"{text}: {len(rows)} of {ranks} ranks told what they hold")
    before, after = (median(int(each) * 1024 / 1e6 for each in column) for column in zip(*rows, strict=True))
    return before, after


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hocket.lab.memory.held", description=__doc__.split("\n")[0])
    parser.add_argument("mpis", nargs="*", metavar="MPI", help="as of `hocket bench`: openmpi, mpich=/prefix, ...")
    parser.add_argument("--ranks", default="2,64", metavar="N,...", help="(2,64)")
    parser.add_argument("--bytes", type=parse_size, default=16 << 20, metavar="N", help="of the array (16M)")
    options = parser.parse_args(argv)
    print("| ranks | library | before, MB | after, MB | hocket's after, as a part |\n|---|---|---|---|---|")
    for ranks in map(int, options.ranks.split(",")):
        own = 0.0
        for text in ["hocket", *options.mpis]:
            before, after = held(text, ranks, options.bytes)
            own = own or after
            cells = [f"{ranks}", text.partition("=")[0], f"{before:.1f}", f"{after:.1f}", f"{own / after:.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
