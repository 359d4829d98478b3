"""Time of tests on ranks beside that of the same tests on one.

    python -m hocket.lab.starting.testing [--tests 50] [--ranks 3] [--repeat 5]

Runs pytest on so many small tests, each with an allreduce: without ranks, on one rank and on several, in turns.  The
table has the medians of what pytest took, its start and its end included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from hocket.lab.program import arguments

TESTS = """
import numpy as np, pytest, hocket

@pytest.mark.parametrize("n", range({tests}))
{mark}
def test({comm}n):
    assert (comm.allreduce(np.full(1000, n)) == n * comm.size).all()
"""
ALONE = "\ncomm = hocket.local_world(1).comms[0]\n"


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.starting.testing", __doc__, argv, tests=50, ranks=3, repeat=5)
    sources = {"without ranks": TESTS.format(tests=options.tests, mark="", comm="") + ALONE}
    for size in (1, options.ranks):
        mark = f"@pytest.mark.ranks({size})"
        sources[f"on {size} rank{'s' * (size > 1)}"] = TESTS.format(tests=options.tests, mark=mark, comm="comm, ")
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory(prefix="hocket-tests-") as folder:
        for _ in range(options.repeat):
            for name, source in sources.items():
                Path(folder, "test_ranks.py").write_text(source)
                begin = time.perf_counter()
                words = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", folder, folder]
                subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=300)
                seconds[name].append(time.perf_counter() - begin)
    print(f"| {options.tests} tests | s |\n|---|---|")
    for name, found in seconds.items():
        print(f"| {name} | {median(found):.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
