"""The cost of order="exact", beside order="any" in the same processes, call by call in turns.

    hocket run -n 4 -- python -m hocket.lab.exact [BYTES] [TURNS]

Each rank has one row, or three that are added too (order="any" adds them by NumPy first).  Addends are easy (a normal
distribution), or ill-conditioned: exponents from all over the dtype's range.  Medians in us, and p90.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hocket

Array = np.ndarray[Any, Any]


def addends(rank: int, dtype: str, n: int, easy: bool) -> Array:
    """Three rows."""
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(3, n))
    if not easy:
        span = np.finfo(dtype).maxexp - 8
        x = np.ldexp(x, rng.integers(-span, span, (3, n)))
    return x.astype(dtype)


def timed(comm: hocket.Communicator, call: Callable[[], Any]) -> float:
    comm.barrier()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compared(comm: hocket.Communicator, x: Array, rows: int, turns: int) -> Array:
    """Seconds of the slowest rank: of each turn by order="any" and "exact"."""
    one, total, out = x[0].copy(), np.empty_like(x[0]), np.empty_like(x[0])

    def plain() -> Any:
        return comm.allreduce(one if rows == 1 else np.add.reduce(x, 0, out=total), out=out)

    def exact() -> Any:
        return comm.allreduce(one if rows == 1 else x, out=out, order="exact", axis=None if rows == 1 else 0)

    times = np.array([[timed(comm, each) for each in (plain, exact)] for _ in range(turns + 5)])[5:]
    found: Array = comm.allreduce(times, "max")
    return found


def main(nbytes: int = 1 << 20, turns: int = 60) -> None:
    comm = hocket.init()
    if comm.rank == 0:
        print("| dtype | data | rows | any us | p90 | exact us | p90 | ratio |\n|---|---|---|---|---|---|---|---|")
    for dtype, easy, rows in itertools.product(("float32", "float64"), (True, False), (1, 3)):
        times = compared(comm, addends(comm.rank, dtype, nbytes // np.dtype(dtype).itemsize, easy), rows, turns)
        if comm.rank == 0:
            middle, high = np.median(times, 0) * 1e6, np.percentile(times, 90, 0) * 1e6
            ratio = np.median(times[:, 1] / times[:, 0])
            data = "easy" if easy else "ill-conditioned"
            cells = [f"{each:.0f}" for pair in zip(middle, high, strict=True) for each in pair]
            print("| " + " | ".join([dtype, data, str(rows), *cells, f"{ratio:.2f}"]) + " |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
