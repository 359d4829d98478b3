"""What does the recorder cost a call of 8 bytes?

    python -m hocket.bench.observe.recorder [--calls 60000] [--blocks 20]

Counts the instructions of an allreduce of one rank, with valgrind's callgrind (`apt-get install valgrind`), and times
allreduces of two ranks in blocks of 5,000 calls, one with the recorder and one without, by turns.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

FEW = 1000
"""Calls of the run that is subtracted: start and end, and the first calls, which plan."""
CALLS = """
import os, sys, hocket, numpy
comm, x = hocket.init(), numpy.ones(1)
for _ in range(int(sys.argv[1])):
    comm.allreduce(x)
os._exit(0)
"""
BLOCKS = """
import sys, time, hocket, numpy
comm, x = hocket.init(), numpy.ones(1)
seconds = {"off": [], "on": []}
queue, world = comm.membership.main, comm.world
for block in range(int(sys.argv[1])):
    for name in ("off", "on"):
        if name == "off":
            queue.engine.record(None)
        else:
            world.recorder.follow(queue, comm.name, "collectives", comm.members, 0, None)
        comm.barrier()
        begin = time.perf_counter()
        for _ in range(5000):
            comm.allreduce(x)
        seconds[name].append((time.perf_counter() - begin) / 5000)
if comm.rank == 0:
    print(numpy.median(seconds["off"]) * 1e6, numpy.median(seconds["on"]) * 1e6)
comm.close()
"""


def instructions(calls: int, on: bool) -> float:
    """Instructions of one call."""
    counts = []
    for n in (FEW, FEW + calls):
        counter = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        command = [*counter, sys.executable, "-c", CALLS, str(n)]
        ended = subprocess.run(
            ["env", f"HOCKET_RECORDER={on:d}", *command], check=True, capture_output=True, text=True, timeout=600)
        counts.append(int(re.findall(r"refs:\s+([\d,]+)", ended.stderr)[-1].replace(",", "")))
    return (counts[1] - counts[0]) / calls


def times(blocks: int) -> tuple[float, float]:
    """Microseconds of a call, without and with."""
    launcher = [sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--"]
    command = [*launcher, sys.executable, "-c", BLOCKS, str(blocks)]
    off, on = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout.split()
    return float(off), float(on)


def main(argv: Sequence[str] | None = None) -> int:
    about = __doc__.split("\n")[0]
    made = argparse.ArgumentParser(prog="hocket.bench.observe.recorder", description=about, allow_abbrev=False)
    made.add_argument("--calls", type=int, default=60000, metavar="N", help="that are counted (60000)")
    made.add_argument("--blocks", type=int, default=20, metavar="N", help="of 5,000 calls, each way (20)")
    options = made.parse_args(argv)
    print("| | off | on | more |\n|---|---|---|---|")
    if shutil.which("valgrind") is None:
        print("no valgrind: instructions are not counted", file=sys.stderr)
    else:
        off, on = (instructions(options.calls, on) for on in (False, True))
        print(f"| instructions of a call, 1 rank | {off:.0f} | {on:.0f} | {(on / off - 1) * 100:.2f} % |")
    before, after = times(options.blocks)
    print(f"| microseconds of a call, 2 ranks | {before:.3f} | {after:.3f} | {(after / before - 1) * 100:.1f} % |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
