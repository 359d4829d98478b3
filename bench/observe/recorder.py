"""What does the recorder cost a call of 8 bytes?

    python -m hocket.bench.observe.recorder [--calls 6400] [--repeats 3] [--blocks 20]

Counts the instructions of an allreduce of one rank, with valgrind's callgrind (`apt-get install valgrind`), and times
allreduces of two ranks in blocks of 5,000 calls, one with the recorder and one without, by turns.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

MARKER = "getpgid"
"""A function of the C library that nothing else calls: callgrind begins a new count where it is entered."""
COUNTED = """
import os, sys, hocket, numpy
comm, x = hocket.init(), numpy.ones(1)
queue, recorder = comm.membership.main, comm.world.recorder
about = comm.name, "collectives", comm.members, 0, None

def count(calls):
    for n in (calls, 3 * calls):
        os.getpgid(0)
        for _ in range(n):
            comm.allreduce(x)
        os.getpgid(0)

for _ in range(1000):   # plans, and the calls that are all timed
    comm.allreduce(x)
for repeat in range(int(sys.argv[2])):
    queue.engine.record(None)
    count(int(sys.argv[1]))
    recorder.follow(queue, *about)
    count(int(sys.argv[1]))
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


def instructions(calls: int, repeats: int) -> tuple[float, float]:
    """Instructions of one call, without and with: the fewest of the repeats.

    Both are counted in one process, so imports and hashes are the same.  Of two loops, one three times as long as the
    other, the difference is that of calls alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        counter = [
            "valgrind", "--tool=callgrind", f"--dump-before={MARKER}", f"--callgrind-out-file={folder}/out",
            "--combine-dumps=no",
        ]  # fmt: skip
        command = [*counter, sys.executable, "-c", COUNTED, str(calls), str(repeats)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        parts = {int(path.suffix[1:]): path.read_text() for path in pathlib.Path(folder).glob("out.*")}
    loops = [int(re.findall(r"^(?:summary|totals): (\d+)", parts[number], re.M)[-1]) for number in sorted(parts)][1::2]
    of_call = [(more - less) / (2 * calls) for less, more in zip(loops[::2], loops[1::2], strict=False)]
    return min(of_call[::2]), min(of_call[1::2])


def times(blocks: int) -> tuple[float, float]:
    """Microseconds of a call, without and with."""
    launcher = [sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--"]
    command = [*launcher, sys.executable, "-c", BLOCKS, str(blocks)]
    off, on = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout.split()
    return float(off), float(on)


def main(argv: Sequence[str] | None = None) -> int:
    about = __doc__.split("\n")[0]
    made = argparse.ArgumentParser(prog="hocket.bench.observe.recorder", description=about, allow_abbrev=False)
    about = "of a short loop; a long one has three times as many (6400)"
    made.add_argument("--calls", type=int, default=6400, metavar="N", help=about)
    made.add_argument("--repeats", type=int, default=3, metavar="N", help="of the count; the fewest are told (3)")
    made.add_argument("--blocks", type=int, default=20, metavar="N", help="of 5,000 calls, each way (20)")
    options = made.parse_args(argv)
    print("| | off | on | more |\n|---|---|---|---|")
    if shutil.which("valgrind") is None:
        print("no valgrind: instructions are not counted", file=sys.stderr)
    else:
        off, on = instructions(options.calls, options.repeats)
        print(f"| instructions of a call, 1 rank | {off:.0f} | {on:.0f} | {(on / off - 1) * 100:.2f} % |")
    before, after = times(options.blocks)
    print(f"| microseconds of a call, 2 ranks | {before:.3f} | {after:.3f} | {(after / before - 1) * 100:.1f} % |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
