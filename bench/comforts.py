"""The cost of calls that do several things at once, beside the calls that they stand for.

    hocket run -n 2 -- python -m hocket.bench.comforts [--seconds 2] [--gigabytes 1]

A list of 100 small arrays in one allreduce, beside 100 calls; `Grid.exchange`, beside a halo that is written by hand
with two `sendrecv` an axis; `check_equal`, beside a memcpy of the same bytes.  In turns, in one process; medians.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy

import hocket
from hocket.system.cores import processor

Call = Callable[[], object]
Array = numpy.ndarray[Any, Any]


def main(argv: Sequence[str] | None = None) -> int:
    prog, what = "hocket.bench.comforts", __doc__.split("\n")[0]
    made = argparse.ArgumentParser(prog=prog, description=what, allow_abbrev=False)
    made.add_argument("--seconds", type=float, default=2.0, help="of each line (2)")
    made.add_argument("--gigabytes", type=float, default=1.0, help="of check_equal (1)")
    options = made.parse_args(argv)
    with hocket.init() as comm:
        say = print if comm.rank == 0 else (lambda *_, **__: None)
        say(f"| {processor()}, {comm.size} ranks | us | beside it, us | ratio |")
        say("|---|---|---|---|")
        for name, ours, other in [*_lists(comm), *_halos(comm), _equal(comm, options.gigabytes)]:
            one, two = _turns(comm, ours, other, options.seconds)
            say(f"| {name} | {one:.1f} | {two:.1f} | {two / one:.2f} |", flush=True)
    return 0


def _turns(comm: hocket.Communicator, ours: Call, other: Call, seconds: float) -> tuple[float, float]:
    """Medians of both, in microseconds."""
    took: dict[Call, list[float]] = {ours: [], other: []}
    end = time.perf_counter() + seconds
    while True:
        for call in took:
            call()
            comm.barrier()
            begun = time.perf_counter()
            call()
            took[call].append(time.perf_counter() - begun)
        if comm.allreduce(int(time.perf_counter() < end and len(took[ours]) < 3000), "min") == 0:
            return tuple(float(numpy.median(took[call])) * 1e6 for call in (ours, other))  # type: ignore[return-value]


def _lists(comm: hocket.Communicator) -> list[tuple[str, Call, Call]]:
    def pair(count: int) -> tuple[str, Call, Call]:
        arrays = [numpy.zeros(count) for _ in range(100)]
        calls: Call = lambda: [comm.allreduce(each) for each in arrays]  # noqa: E731
        return f"a list of 100 arrays of {8 * count} B, beside 100 calls", lambda: comm.allreduce(arrays), calls

    return [pair(count) for count in (1, 64, 512)]


def _halos(comm: hocket.Communicator) -> list[tuple[str, Call, Call]]:
    shape = hocket.grid_shape(comm.size, 2)
    grid = hocket.Grid(comm, shape, True)

    def by_hand(u: Array) -> None:
        for axis in range(2):
            before, after = grid.shift(axis)
            faces = [numpy.take(u, at, axis).copy() for at in (-2, 1)]
            for face, dest, source, at in ((faces[0], after, before, 0), (faces[1], before, after, -1)):
                come = numpy.empty_like(face)
                comm.sendrecv(face, dest, come, source)
                u[(at, slice(None)) if axis == 0 else (slice(None), at)] = come

    def pair(length: int) -> tuple[str, Call, Call]:
        u = numpy.zeros((length, length))
        name = f"exchange of {length} x {length} float64, beside sendrecv by hand"
        return name, lambda: grid.exchange(u), lambda: by_hand(u)

    return [pair(length) for length in (32, 512)]


def _equal(comm: hocket.Communicator, gigabytes: float) -> tuple[str, Call, Call]:
    x = numpy.ones(int(gigabytes * 1e9) // 8)
    y = x.copy()
    name = f"check_equal of {x.nbytes / 1e9:g} GB, beside memcpy"
    return name, lambda: comm.check_equal(x), lambda: numpy.copyto(y, x)


if __name__ == "__main__":
    raise SystemExit(main())
