"""`python -m hocket.lab.observe.attribution`: does a report name what was broken?  Four ranks on two hosts (as root).

Each case runs several times: rank 2 sleeps before every second call; what host a sends is shaped to 300 Mbit/s; rank 2
shares its core with a busy process; nothing is wrong.  A line of JSON a case: in how many runs the right one was named,
and in how many anything else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from hocket.conformance.jobs.ranks import again, found_on, main_or_rank
from hocket.lab.program import arguments
from hocket.observe.files.reading import read
from hocket.observe.findings import find
from hocket.system.namespaces.hosts import CABLE, hosts

CALLS, COUNT = 40, 1 << 18
SHAPE = ["root", "tbf", "rate", "300mbit", "burst", "128kb", "latency", "50ms"]
CASES: dict[str, list[tuple[object, ...]]] = {
    "late": [("late", 2)], "link": [("link", 0, 2), ("link", 0, 3), ("link", 1, 2), ("link", 1, 3)],
    "core": [("core", 2), ("late", 2), ("work", 2)], "healthy": [],
}  # fmt: skip
"""The causes that may be named."""


def rank(case: str, path: str) -> None:
    """One rank of a run."""
    import numpy as np

    import hocket

    comm = hocket.init()
    x = np.ones(COUNT, np.float32)
    comm.allreduce(x.copy())
    busy = None
    if case == "core" and comm.rank == 2:
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(busy.pid, {core})
    with comm.trace(path):
        for call in range(CALLS):
            time.sleep(0.003 + 0.02 * (case == "late" and comm.rank == 2 and call % 2 == 0))
            comm.allreduce(x.copy())
    if busy is not None:
        busy.kill()
        busy.wait()
    if comm.rank == 0:
        print(json.dumps({"path": path}), flush=True)
    comm.close()


def culprits_of(case: str, folder: str) -> list[tuple[object, ...]]:
    """Whom the report of one run names."""
    path = os.path.join(folder, "t.pftrace.gz")
    words = again("hocket.lab.observe.attribution", case, path)
    with hosts() as names:
        if case == "link":
            subprocess.run(["tc", "-n", names[0], "qdisc", "add", "dev", CABLE, *SHAPE], check=True)
        found_on(names, 2, words, "attribution", 120)
    return [cause for cause, _ in find(read(path)).culprits]


def main() -> int:
    options = arguments("hocket.lab.observe.attribution", __doc__, None, runs=20, cases=",".join(CASES))
    for case in options.cases.split(","):
        right = wrong = 0
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="attribution-") as folder:
                found = culprits_of(case, folder)
            right += any(cause in CASES[case] for cause in found) if CASES[case] else not found
            wrong += any(cause not in CASES[case] for cause in found)
        print(json.dumps({"case": case, "runs": options.runs, "right": right, "something else too": wrong}), flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
