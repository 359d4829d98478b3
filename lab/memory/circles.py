"""The best size of the memory through which two processes hand over bytes.

    python -m hocket.lab.memory.circles [--bytes 64K]

Two processes, each bound to a core, write so many bytes into shared memory at once, and read the other's: each time
behind those of the last time, and from the beginning again when the circle is full.  Prints the median time, by the
size of the circle.  Where lines come back that the reader's core still holds, the writer must take each from it; stores
past the caches need not.  Which is faster depends on how far apart the cores are, so a cache line's time is told, too.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Sequence

import numpy

from hocket.bench.harness.limits import copy, fill, pingpong
from hocket.lab.program import arguments

CIRCLES = [1 << n for n in range(17, 26)]
BLOCKS, TURNS, SPINS, YIELD = 15, 200, 10**7, 10**4
ROUNDS = 300
"""Rounds of a cache line, which are short: nobody yields meanwhile."""


def main(argv: Sequence[str] | None = None) -> int:
    nbytes = arguments("hocket.lab.memory.circles", __doc__, argv, bytes=64 << 10).bytes
    cores = sorted(os.sched_getaffinity(0))[:2]
    memory = numpy.frombuffer(mmap.mmap(-1, 2 * CIRCLES[-1] + 8192), numpy.uint8)
    turns = memory[2 * CIRCLES[-1] :][:4096].view(numpy.uint64)[::32]  # each in a line of its own
    lines = memory[2 * CIRCLES[-1] + 4096 :]
    print(f"| circle | us for {nbytes:,} B each way | GB/s | past the caches, us | GB/s | a line there and back, us |")
    print("|" + "---|" * 6, flush=True)
    me = 0 if os.fork() else 1
    os.sched_setaffinity(0, {cores[me % len(cores)]})
    x, out = numpy.ones(nbytes, numpy.uint8), numpy.empty(nbytes, numpy.uint8)
    turn = rounds = 0
    step = -(-nbytes // 16) * 16
    for circle in CIRCLES:
        mine, theirs = (memory[i * CIRCLES[-1] :][:circle] for i in (me, 1 - me))
        seconds: list[list[float]] = [[], []]
        begin = time.perf_counter()
        pingpong(lines, me, rounds, ROUNDS)
        line = (time.perf_counter() - begin) / ROUNDS
        rounds += ROUNDS
        for block in range(2 * BLOCKS):
            past = bool(block % 2)
            begin = time.perf_counter()
            for i in range(TURNS):
                at = i * step % max(step, circle - circle % step)
                fill(mine[at : at + nbytes], x, past)
                turn += 1
                turns[me] = turn
                _await(turns, 1 - me, turn)
                copy(out, theirs[at : at + nbytes], ours=True)
            seconds[past].append((time.perf_counter() - begin) / TURNS)
        if me == 0:
            cached, past_them = (float(numpy.median(each)) for each in seconds)
            rows = [f"{t * 1e6:.1f} | {nbytes / t * 1e-9:.1f}" for t in (cached, past_them)]
            print(f"| {circle >> 10} KiB | {' | '.join(rows)} | {line * 1e6:.2f} |", flush=True)
    if me == 1:
        os._exit(0)
    os.wait()
    return 0


def _await(turns: numpy.ndarray, other: int, turn: int) -> None:
    """Spin until the other process is there; RuntimeError after some 10 s, as it has ended then."""
    for i in range(SPINS):
        if turns[other] >= turn:
            return
        if i % YIELD == YIELD - 1:  # the other one may need this core
            os.sched_yield()
    raise RuntimeError("the other process is gone")


if __name__ == "__main__":
    sys.exit(main())
