"""The recorder's cost for a short call, and a trace's for a longer one.

    python -m hocket.lab.observe.recorder [--calls 6400] [--repeats 3] [--blocks 20]

Counts the instructions of an allreduce of one rank, with valgrind's callgrind (`apt-get install valgrind`; --calls 0
does not), and times allreduces of two ranks in blocks by turns: without the recorder, with it, and traced.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from hocket.lab.program import arguments

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
blocks, calls, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
comm = hocket.init()
comm.barrier()   # the first call: its queue is followed from then on
queue, own = comm.membership.main, comm.world.recorder
about = dict(own.queues)[queue].about
writers = {"off": None, "on": own._ring(about)}
own.trace(folder)
writers["traced"] = own._ring(about)
for count in map(int, sys.argv[4:]):
    x, seconds = numpy.ones(count), {name: [] for name in writers}
    for _ in range(100):
        comm.allreduce(x)
    for block in range(blocks):
        for name, writer in writers.items():
            queue.engine.record(writer)
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                comm.allreduce(x)
            seconds[name].append((time.perf_counter() - begin) / calls)
    if comm.rank == 0:
        print(8 * count, *(numpy.median(each) * 1e6 for each in seconds.values()))
queue.engine.record(None)
own.untrace()
comm.close()
"""
COUNTS = 1, 1 << 10, 1 << 13
"""float64 of the vectors: 8 B, and calls of more than 5 us."""


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


def times(blocks: int, calls: int) -> list[list[float]]:
    """By size: bytes, and microseconds of a call without, with the recorder, and traced."""
    launcher = [sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--", sys.executable, "-c", BLOCKS]
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, str(blocks), str(calls), folder, *map(str, COUNTS)]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    return [list(map(float, line.split())) for line in said.splitlines()]


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("hocket.lab.observe.recorder", __doc__, argv, calls=6400, repeats=3, blocks=20, block=2000)
    if options.calls and shutil.which("valgrind") is None:
        print("no valgrind: instructions are not counted", file=sys.stderr)
    elif options.calls:
        print("| | off | on | more |\n|---|---|---|---|")
        off, on = instructions(options.calls, options.repeats)
        print(f"| instructions of a call, 1 rank | {off:.0f} | {on:.0f} | {(on / off - 1) * 100:.2f} % |")
    print("\n| bytes, 2 ranks | off, us | on, us | more | traced, us | more |\n|---|---|---|---|---|---|")
    for nbytes, off, on, traced in times(options.blocks, options.block):
        print(f"| {nbytes:.0f} | {off:.3f} | {on:.3f} | {on / off - 1:.1%} | {traced:.3f} | {traced / off - 1:.1%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
