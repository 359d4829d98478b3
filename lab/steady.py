"""The cost of a start, and whether a million calls in a row are all alike.

    hocket run -n 4 -- python -m hocket.lab.steady [--calls 1000000]

`import` is what hocket adds to NumPy's own import, up to the first name used, in a fresh interpreter; `init` counts
from the moment the last rank calls it to the moment the last rank has it.  The calls are allreduces of 8 bytes, each
timed by itself; the clock's own time is in it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

import numpy

import hocket
from hocket.bench.harness.table import micro
from hocket.lab.program import arguments

IMPORT = "import time, numpy; t = time.perf_counter(); import hocket; hocket.init; print(time.perf_counter() - t)"
IMPORTS = 5


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.steady", __doc__, argv, calls=1_000_000)
    before = time.monotonic()
    with hocket.init() as comm:
        after = time.monotonic()
        # All clocks of a host are one.
        first, last = (comm.allreduce(numpy.array([t]), "max")[0] for t in (before, after))
        calls = _calls(comm, options.calls)
        if comm.rank == 0:
            imports = [float(subprocess.check_output([sys.executable, "-c", IMPORT])) for _ in range(IMPORTS)]
            print(f"{comm.size} ranks\n\n| what | |\n|---|---|")
            print(f"| import | {median(imports) * 1e3:.0f} ms |\n| init | {(last - first) * 1e3:.0f} ms |")
            for name, share in (("median", 0.5), ("99 %", 0.99), ("99.9 %", 0.999), ("slowest", 1.0)):
                print(f"| {options.calls:,} calls of 8 B, {name} | {micro(float(numpy.quantile(calls, share)))} us |")
    return 0


def _calls(comm: hocket.Communicator, n: int) -> numpy.ndarray:
    """Seconds of each of n calls, on this rank."""
    x, clock, seconds = numpy.zeros(2, numpy.float32), time.perf_counter, numpy.zeros(n)
    for _ in range(1000):
        comm.allreduce(x)
    for i in range(n):
        begin = clock()
        comm.allreduce(x)
        seconds[i] = clock() - begin
    return seconds


if __name__ == "__main__":
    sys.exit(main())
