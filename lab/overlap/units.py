"""Two layers, in units of time: how much of the communication is hidden?

    python -m hocket.lab.overlap.units [--rates 100mbit,1gbit]          as root (system/namespaces/hosts.py)

Forward 0.5 + 0.5 units, backward 1 + 1, communication 1.5 + 1.5: the founding survey's figure.  Computation is sleep, a
unit is 100 ms (at 1 Gbit/s 50), and a layer has as many bytes as travel in 1.5 units.  Without overlap a step takes 6
units; wait-free backpropagation (WFBP) 5; priorities with slices (P3) 4.5; with delayed averages (OD-SGD) 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import main_or_rank
from hocket.lab.program import arguments, calibrated, heading, on_a_cable, tell
from hocket.training import Scheduler

MODULE = "hocket.lab.overlap.units"
LAYERS = ("first", "second")
REACH = {"none": 6.0, "WFBP": 5.0, "P3": 4.5, "OD-SGD": 3.0}
SLICE = 80_000
SKIP = 2
"""Steps that are not counted."""


def rank(unit_ms: str, steps: str) -> None:
    unit = float(unit_ms) / 1e3
    with hocket.init() as comm:
        n = calibrated(comm, 1.5 * unit)
        grads = [{name: np.ones(n, np.float32) for name in LAYERS} for _ in range(2)]

        def scheduler(**options: Any) -> Scheduler:
            made = Scheduler(comm, finite=False, **options)
            for name in LAYERS:
                made.declare(name, grads[0][name])
            made.seal()
            return made

        def measured(begun: Callable[[int], float], after: Callable[[], object] = lambda: None) -> float:
            """Units of a step; `begun` makes one, and returns when its forward pass began."""
            comm.barrier()
            times = [begun(i) for i in range(int(steps))]
            after()
            return float(median(np.diff(times)[SKIP:].tolist())) / unit

        def none(i: int) -> float:
            began = time.perf_counter()
            time.sleep(3 * unit)
            for name in reversed(LAYERS):
                comm.allreduce(grads[0][name], "avg")
            return began

        found = {"none": measured(none)}
        s = scheduler(order="fifo", slice=None)
        found["WFBP"] = measured(_overlapped(s, grads, unit, barrier=True), lambda: _drained(s))
        p3 = scheduler(lanes=2, slice=SLICE)
        found["P3"] = measured(_overlapped(p3, grads, unit, barrier=False), lambda: _drained(p3))
        od = scheduler(lanes=2, slice=SLICE)
        found["OD-SGD"] = measured(_delayed(od, grads, unit), lambda: _drained(od))
        tell(comm, found | {"bytes": 4 * n})


def _overlapped(s: Scheduler, grads: Sequence[Any], unit: float, barrier: bool) -> Callable[[int], float]:
    def step(i: int) -> float:
        began = 0.0
        if barrier and i:
            _drained(s)
        for name in LAYERS:
            if not barrier and i:
                s.wait(name)
            began = began or time.perf_counter()
            time.sleep(unit / 2)
        for name in reversed(LAYERS):
            time.sleep(unit)
            s.ready(name, grads[0][name])
        s.step()
        return began

    return step


def _delayed(s: Scheduler, grads: Sequence[Any], unit: float) -> Callable[[int], float]:
    """A layer's average is that of the step before."""

    def step(i: int) -> float:
        began = time.perf_counter()
        time.sleep(3 * unit)
        if i:
            _drained(s)
        for name in reversed(LAYERS):
            s.ready(name, grads[i % 2][name])
        s.step()
        return began

    return step


def _drained(s: Scheduler) -> None:
    for name in LAYERS:
        s.wait(name)


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(MODULE, __doc__, argv, rates="100mbit,1gbit", quick=False)
    heading(["cable", "bytes of a layer", *(f"{name}: {units:g}" for name, units in REACH.items())])
    for rate in given.rates.split(","):
        unit = 10 if given.quick else 50 if rate.endswith("gbit") else 100
        found = on_a_cable(MODULE, rate, [unit, 5 if given.quick else 16])
        cells = [f"{found[name]:.2f}" for name in REACH]
        print(f"| {rate} | {found['bytes']:,.0f} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
