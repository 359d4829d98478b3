"""`python -m hocket.lab.observe.replayed`: does a trace tell all of a run, and what a faster link brings?  (As root.)

Four ranks on two hosts compute and sum up vectors, by the ring, while the cable carries R and then 2R.  A table: the
share of the ranks' wall time that the spans of the trace add up to, at R and at 2R; what
`--what-if "link anna-berta x2"` says of the run at R; and what the run at 2R took.
The quickest of several runs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hocket.conformance.jobs.ranks import again, found_on, main_or_rank
from hocket.observe.files.reading import read
from hocket.observe.findings import Findings, find
from hocket.observe.replay import replayed, reproduced, taken, with_change
from hocket.system.namespaces.hosts import hosts

EACH, COUNT, COMPUTE = 2, 1 << 18, 0.02
"""Ranks on a host; float32 of a vector; seconds before each call."""
NAMED = 'if [ "$RANK" -lt 2 ]; then hostname anna; else hostname berta; fi; exec "$@"'
CHANGE = "link anna-berta x2"


class Ran(NamedTuple):
    """One run."""

    found: Findings
    covered: list[float]
    """By rank: its spans, as a share of its wall time."""


def rank(path: str, calls: str) -> None:
    """One rank of a run."""
    import hocket

    comm = hocket.init()
    x = np.ones(COUNT, np.float32)
    comm.allreduce(x, algorithm="ring")
    with comm.trace(path):
        recorder, began = comm.recorder(), time.monotonic_ns()
        for _ in range(int(calls)):
            begin = time.monotonic_ns()
            time.sleep(COMPUTE)
            recorder.span("compute", begin, time.monotonic_ns(), "program")
            comm.allreduce(x, algorithm="ring")
        wall = time.monotonic_ns() - began
    walls = comm.allgather(np.array([wall / 1e9]))
    if comm.rank == 0:
        print(json.dumps({"walls": np.ravel(walls).tolist()}), flush=True)
    comm.close()


def quickest(rate: str, calls: int, runs: int) -> Ran:
    return min((ran(rate, calls) for _ in range(runs)), key=lambda each: each.found.seconds)


def ran(rate: str, calls: int) -> Ran:
    """A run over a cable of this rate."""
    with tempfile.TemporaryDirectory(prefix="replayed-") as folder:
        path = os.path.join(folder, "t.pftrace.gz")
        python = again("hocket.lab.observe.replayed", path, calls)
        with hosts(rate) as names:
            (said,) = found_on(names, EACH, ["unshare", "--uts", "sh", "-c", NAMED, "sh", *python], "replayed", 300)
        timeline = read(path)
    spans = np.concatenate([timeline.of("calls"), timeline.of("spans")])
    took = np.bincount(timeline.ranks(spans), (spans["end"] - spans["begin"]) / 1e9, len(said["walls"]))
    return Ran(find(timeline), [float(t / wall) for t, wall in zip(took, said["walls"], strict=True)])


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="python -m hocket.lab.observe.replayed", description=__doc__.split("\n")[0])
    made.add_argument("--mbit", type=int, nargs="+", default=[50, 100, 200], help="R, each (50 100 200)")
    made.add_argument("--calls", type=int, default=20, help="of a run (20)")
    made.add_argument("--runs", type=int, default=3, help="at each rate (3)")
    options = made.parse_args(argv)
    print("| R, Mbit/s | spans add up to | the run at R | its replay | predicted at 2R | the run at 2R | off |")
    print("|---|---|---|---|---|---|---|")
    for mbit in options.mbit:
        one, twice = (quickest(f"{rate}mbit", options.calls, options.runs) for rate in (mbit, 2 * mbit))
        print(row(mbit, one, twice), flush=True)
    return 0


def row(mbit: int, one: Ran, twice: Ran) -> str:
    run = taken(one.found)
    now, truth = reproduced(run), taken(twice.found).seconds
    then = replayed(with_change(one.found, run, CHANGE)) * run.seconds / now
    least, most = min(one.covered + twice.covered), max(one.covered + twice.covered)
    return (
        f"| {mbit} | {least:.1%} to {most:.1%} | {run.seconds:.2f} s | {now / run.seconds - 1:+.1%} | {then:.2f} s"
        f" | {truth:.2f} s | {then / truth - 1:+.1%} |"
    )


if __name__ == "__main__":
    main_or_rank(main, rank)
