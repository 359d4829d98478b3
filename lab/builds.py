"""Allreduce of two builds of hocket, in turns: a change beside what was before.

    python -m hocket.lab.builds OLD [--blocks 5] [--seconds 0.3] [--bytes 8,65536,1048576,16777216] [--shm]

Two ranks are on two hosts, which are network namespaces; with `--shm` they are on this one.
OLD: another checkout, that is built in its own .venv.  Each block runs both builds, in turns; a line has the medians,
their ratio, and how far the old build's own blocks are apart.  Arrays are summed `in` place, or into others (`out`).
Hosts need root.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

SIZES = "8,1024,65536,262144,1048576,4194304,16777216,67108864"
WARM, LEAST, MOST = 5, 5, 2000
"""Calls of a size before any counts, and that count."""
PATIENCE = 300.0
MARK = "rows: "


def rank(sizes: list[int], seconds: float) -> None:
    """One rank: rank 0 prints medians in us."""
    import numpy as np

    import hocket

    rows = {}
    with hocket.init() as comm:
        for nbytes in sizes:
            for kind in ("in", "out"):
                x, y = np.zeros(max(1, nbytes // 4), np.float32), np.empty(max(1, nbytes // 4), np.float32)
                out = None if kind == "in" else y
                took: list[float] = []
                calls = float(WARM)
                while len(took) < WARM + calls:
                    if len(took) == WARM:
                        wanted = seconds / max(statistics.median(took), 1e-9)
                        calls = float(comm.allreduce(np.array([min(MOST, max(LEAST, wanted))], np.float64), "max")[0])
                    comm.barrier()
                    began = time.perf_counter()
                    comm.allreduce(x, out=out)
                    took.append(time.perf_counter() - began)
                rows[f"{nbytes} {kind}"] = statistics.median(took[WARM:]) * 1e6
        if comm.rank == 0:
            print(MARK + json.dumps(rows), flush=True)


def measured(checkout: pathlib.Path, options: argparse.Namespace) -> dict[str, float]:
    folder = checkout / ".venv" / "bin"
    hosts = [] if options.shm else ["--hosts", "2"]
    words = [str(folder / "hocket"), "run", *hosts, "-n", "2", str(folder / "python")]
    words += [os.path.abspath(__file__), "--rank", "--bytes", options.bytes, "--seconds", str(options.seconds)]
    env = {**os.environ, "HOCKET_TRANSPORT": "shm" if options.shm else "tcp", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=PATIENCE, cwd="/")
    found = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
    if not found:
        sys.exit(f"{checkout}: {done.stderr[-2000:]}")
    rows: dict[str, float] = json.loads(found[0])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hocket.lab.builds")
    parser.add_argument("old", nargs="?")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--bytes", default=SIZES)
    parser.add_argument("--shm", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank([int(each) for each in options.bytes.split(",")], options.seconds)
        return
    if options.old is None:
        parser.error("which checkout is the old build?")
    new, old = pathlib.Path(sys.prefix).parent, pathlib.Path(options.old)
    seen: dict[pathlib.Path, list[dict[str, float]]] = {new: [], old: []}
    for block in range(options.blocks):
        for each in (old, new) if block % 2 == 0 else (new, old):
            seen[each].append(measured(each, options))
    print("| bytes, arrays | before: us | now: us | now / before | before / before |")
    print("|---|---|---|---|---|")
    for key in seen[new][0]:
        before, now = ([row[key] for row in seen[each]] for each in (old, new))
        a, b = statistics.median(before), statistics.median(now)
        print(f"| {key} | {a:.1f} | {b:.1f} | {b / a:.2f} | {min(before) / a:.2f} to {max(before) / a:.2f} |")


if __name__ == "__main__":
    main()
