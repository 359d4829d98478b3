"""The time of an urgent allreduce while a long one of a lower lane is under way, over a slow cable.

    python -m hocket.lab.overlap.urgent [--rates 100mbit,1gbit]          as root (system/namespaces/hosts.py)

64 KiB on a lane of priority 1 beside 8 MiB on one of priority -1; each alone, and together; TCP and TLS.  Medians.  The
urgent ones come every 30 ms, so the long one also shows what holding costs it: it is given their bytes' time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import main_or_rank
from hocket.lab.program import arguments, heading, on_a_cable, tell, timed

MODULE = "hocket.lab.overlap.urgent"
SMALL, LARGE = 64 << 10, 8 << 20
DRAIN = 1 << 20
"""Bytes that empty the bucket (system/namespaces/hosts.py, BURST)."""
ROW = 8
"""Urgent calls alone that are timed together."""
EVERY = 0.03
"""Seconds between two urgent calls."""


def rank(rounds: str, large: str) -> None:
    with hocket.init() as comm:
        urgent, low, stop = comm.lane("urgent", 1), comm.lane("low", -1), comm.lane("stop", 2)
        small, long = np.ones(SMALL // 4, np.float32), np.ones(int(large) // 4, np.float32)

        def one() -> None:
            urgent.allreduce(small, "avg")

        def drained() -> float:
            """Seconds of a long call alone, when the cable's bucket has no tokens left, as in its midst.

            Right behind what empties it, and several in a row: in a barrier of 0.2 ms there come 25 KB of tokens at
            1 Gbit/s, and one call alone took less than the wire's time.
            """
            comm.barrier()
            low.allreduce(long[: DRAIN // 4], "avg")
            began = time.perf_counter()
            for _ in range(ROW):
                one()
            return (time.perf_counter() - began) / ROW

        one()
        alone = [drained() for _ in range(3 * int(rounds))]
        long_alone = [timed(comm, lambda: low.allreduce(long, "avg")) for _ in range(int(rounds))]
        beside: list[float] = []
        long_beside, counts = [], []
        for _ in range(int(rounds)):
            count, seconds = _together(comm, stop, low, long, one, beside)
            counts.append(count)
            long_beside.append(seconds)
        found = {"alone": alone, "beside": beside, "long alone": long_alone, "long beside": long_beside}
        tell(comm, {what: median(values) for what, values in found.items()} | {"count": median(counts)})


def _together(
    comm: Any, stop: Any, low: Any, long: Any, one: Callable[[], None], beside: list[float]
) -> tuple[int, float]:
    """The number of urgent calls beside a long one, and its seconds; theirs are added to `beside`."""
    comm.barrier()
    began, count, ended = time.perf_counter(), 0, []
    work = low.allreduce(long, "avg", async_op=True)
    work.then(lambda _: ended.append(time.perf_counter()))
    over = False
    while not over:
        time.sleep(EVERY)  # the long one fills the cable again
        at = time.perf_counter()
        one()
        if not work.done():
            beside.append(time.perf_counter() - at)
            count += 1
        over = bool(stop.allreduce(np.array([float(work.done())]), "max")[0])
    work.wait()
    return count, (ended or [time.perf_counter()])[0] - began


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(MODULE, __doc__, argv, rates="100mbit,1gbit", quick=False)
    heading(["cable", "64 KiB alone", "beside 8 MiB", "x alone", "8 MiB alone", "beside, less theirs", "x alone"])
    for rate in given.rates.split(","):
        for how in ({"HOCKET_TRANSPORT": "tcp"}, {"HOCKET_TRANSPORT": "tcp", "HOCKET_ENCRYPT": "1"}):
            words = [2 if given.quick else 7, LARGE]  # so long that urgent calls fall into it
            found = on_a_cable(MODULE, rate, words, **how)
            alone, beside, long, both = (1e3 * found[what] for what in ("alone", "beside", "long alone", "long beside"))
            left = both - found["count"] * alone
            name = f"{rate}, {'TLS' if 'HOCKET_ENCRYPT' in how else 'TCP'}"
            cells = [f"{alone:.2f} ms", f"{beside:.2f} ms", f"{beside / alone:.2f}", f"{long:.0f} ms", f"{left:.0f} ms"]
            print(f"| {name} | {' | '.join(cells)} | {left / long:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
