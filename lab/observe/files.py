"""`python -m hocket.lab.observe.files [--slices 8000000]`: what does a trace of this size cost?

Eight ranks' records of ring allreduces, as their files have them, become one timeline, which is written and read again.
A line of a table for each: seconds, and the memory of the process until then.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from hocket.observe.files.reading import read
from hocket.observe.files.writing import write
from hocket.observe.merging import merge
from hocket.recording import NOBODY, RECORD, Facts, Kind, Recorded, Ring, What

RANKS, STEPS = 8, 14
"""A ring of 8 ranks has so many steps a call."""
STEP_NS = 10_000
TABLE = {0: What(), 1: What("allreduce(float32[1048576])", "allreduce", "ring", "tcp", 4 << 20, 7, "train.py:12")}
OF_A_STEP = [  # kind, ns after its beginning, instruction, neighbour
    (Kind.STEP, 0, 0, None), (Kind.SEND_READY, 0, 0, 1), (Kind.RECV_READY, 0, 1, -1), (Kind.WAIT_RECV, 1000, 1, -1),
    (Kind.MOVED, 8000, 0, None), (Kind.RECV_END, 8000, 1, -1), (Kind.SEND_END, 9000, 0, 1),
]  # fmt: skip
SLICES_OF_A_STEP = 4
Made = TypeVar("Made")


def recorded(slices: int) -> list[Recorded]:
    """The records of all ranks; so many slices come of them, or a few more."""
    calls = -(-slices // (RANKS * (1 + SLICES_OF_A_STEP * STEPS)))
    steps = np.concatenate([_step(step) for step in range(STEPS)])
    begin, end = _record(Kind.CALL, 0), _record(Kind.DONE, STEPS * STEP_NS)
    one = np.concatenate([begin, steps, end])
    return [_rank(rank, one, calls) for rank in range(RANKS)]


def _record(kind: Kind, ns: int, step: int = NOBODY, lane: int = NOBODY) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    made = np.zeros(1, RECORD)
    made["kind"], made["ns"], made["step"], made["lane"], made["peer"] = kind, ns, step, lane, NOBODY
    made["what"], made["bytes"] = 1, 512 << 10
    return made


def _step(step: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    return np.concatenate([_record(kind, step * STEP_NS + ns, step, lane) for kind, ns, lane, _ in OF_A_STEP])


def _rank(rank: int, one: np.ndarray[tuple[int], np.dtype[np.void]], calls: int) -> Recorded:
    records, call = np.tile(one, calls), np.repeat(np.arange(calls), len(one))
    records["seq"] = call + 1
    records["ns"] += ((call * (STEPS + 1)) * STEP_NS + rank).astype(np.uint64)
    for kind, _, _, neighbour in OF_A_STEP:
        if neighbour is not None:
            records["peer"][records["kind"] == kind] = (rank + neighbour) % RANKS
    facts = Facts(rank, RANKS, "job", 100 + rank, "here", "boot", 0, 0, 0, True)
    return Recorded(facts, TABLE, [Ring("world", "collectives", rank, tuple(range(RANKS)), records)])


def main(argv: Sequence[str] | None = None) -> int:
    about = __doc__.split("\n")[0]
    made = argparse.ArgumentParser(prog="python -m hocket.lab.observe.files", description=about, allow_abbrev=False)
    made.add_argument("--slices", type=int, default=8_000_000, metavar="N", help="of all ranks together (8000000)")
    made.add_argument("-o", "--output", metavar="PATH", help="keep the trace there, to be opened in Perfetto")
    options = made.parse_args(argv)
    parts = recorded(options.slices)
    with tempfile.TemporaryDirectory(prefix="hocket-files-") as folder:
        path = options.output or os.path.join(folder, "t.pftrace.gz")
        print("| | s | CPU s | MB of memory, at most |\n|---|---|---|---|")
        timeline = timed("merge", merge, parts)
        parts.clear()
        timed("write", write, path, timeline)
        written = len(timeline.slices)
        del timeline
        found = timed("read", read, path)
        print(f"\n{written} slices, {os.path.getsize(path) / 1e6:.0f} MB")
        return int(len(found.slices) != written)


def timed(what: str, does: Callable[..., Made], *given: object) -> Made:
    """Do it, and print a line about it."""
    began, busy = time.perf_counter(), time.process_time()
    made = does(*given)
    took, busy = time.perf_counter() - began, time.process_time() - busy
    print(f"| {what} | {took:.1f} | {busy:.1f} | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} |")
    return made


if __name__ == "__main__":
    sys.exit(main())
