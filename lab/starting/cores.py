"""The number of jobs whose two ranks begin on one core, and stay there.

    python -m hocket.lab.starting.cores [--jobs 50] [--torchrun]

Starts so many jobs of two ranks, one after the other, and prints the medians of each job's first 2,000 allreduces of
8 bytes, and how many of them are over 1.5 us: ranks that share a core take 3 to 8 us.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from hocket.lab.program import arguments

SLOW = 1.5
"""Microseconds."""
RANK = """
import time, numpy, hocket
comm, x, seconds = hocket.init(), numpy.zeros(2, numpy.float32), []
for _ in range(2000):
    begin = time.perf_counter()
    comm.allreduce(x)
    seconds.append(time.perf_counter() - begin)
if comm.rank == 0:
    print("median", numpy.median(seconds) * 1e6)
comm.close()
"""


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.starting.cores", __doc__, argv, jobs=50, torchrun=False)
    ours = ["-m", "hocket", "run", "-n", "2", "--", sys.executable]
    torchs = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", sys.executable]
    command = [sys.executable, *(torchs if options.torchrun else ours), "-c", RANK]
    found = []
    for _ in range(options.jobs):
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
        found.append(float(out.split("median")[1].split()[0]))
    slow = sum(us > SLOW for us in found)
    print(f"| jobs | median us | slowest us | over {SLOW} us |\n|---|---|---|---|")
    print(f"| {len(found)} | {median(found):.2f} | {max(found):.2f} | {slow} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
