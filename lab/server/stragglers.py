"""The gains of bounded and no staleness where workers are late, and their costs.  One server, four workers.

    python -m hocket.lab.server.stragglers [--steps 100] [--unit 0.03] [--workers 4] [--clocks bsp,ssp:1,ssp:3,async]

A step is a sleep of one unit: always (`alike`); of four units in one step of ten, by lot (`sometimes late`); of two
units on one worker (`one slow`).  Units a step, the mean of the workers: predicted from the clock's rule and the same
lots, and measured.  What it costs: the workers descend a quadratic function whose curvature is 1 to 0.02, each with the
gradient of what it has pulled; its value after the last step, in parts of the first one, and the units until it was
below a hundredth for good (-: never).

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, found_here, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.training import Client, Range, serve
from hocket.training.server.shards.clocks import staleness

MODULE = "hocket.lab.server.stragglers"
MACHINES = ("alike", "sometimes late", "one slow")
CLOCKS = "bsp,ssp:1,ssp:3,ssp:8,async"
CURVATURE = np.geomspace(0.02, 1.0, 64).astype(np.float32)
RATE = 1.5
"""The rate of learning, of all workers' gradients together."""
ENOUGH = 0.01
PATIENCE = 600.0


def durations(machines: str, workers: int, steps: int) -> list[list[int]]:
    """Each worker's steps, in units."""
    dice = np.random.default_rng(7)
    if machines == "sometimes late":
        return np.where(dice.random((workers, steps)) < 0.1, 4, 1).tolist()  # type: ignore[no-any-return]
    return [[2 if machines == "one slow" and worker == 0 else 1] * steps for worker in range(workers)]


def predicted(units: Sequence[Sequence[int]], bound: float) -> float:
    """Units a step, the mean of the workers: a step begins when the worker's last one has ended, and when all workers
    have ended the one `bound` + 1 before it.

    >>> predicted([[1, 1], [3, 1]], 0), predicted([[1, 1], [3, 1]], 1), predicted([[1, 1], [3, 1]], float("inf"))
    (2.0, 1.5, 1.5)
    """
    ends = [[0.0] for _ in units]
    for step in range(len(units[0])):
        before = max(0, step - int(bound)) if math.isfinite(bound) else 0
        allowed = max(each[before] for each in ends)
        for each, worker in zip(ends, units, strict=True):
            each.append(max(each[step], allowed) + worker[step])
    return sum(each[-1] for each in ends) / len(ends) / len(units[0])


def rank(steps: str, unit: str, clocks: str) -> None:
    """Measure; rank 1 is the first worker, and rank 0 prints a line of JSON for each row."""
    with hocket.init() as comm:
        for machines in MACHINES:
            lots = durations(machines, comm.size - 1, int(steps))
            for clock in clocks.split(","):
                found = comm.share(_run(comm, clock, lots, float(unit)))
                if comm.rank == 0:
                    print(json.dumps(row(machines, clock, lots, found[1:], float(unit))), flush=True)


def _run(comm: Any, clock: str, lots: Sequence[Sequence[int]], unit: float) -> list[list[float]]:
    """The steps of a worker: after each step, the seconds since the first one began, and the function's value before
    it."""
    tables = {"w": Range(len(CURVATURE), initial=1.0)}
    if comm.rank == 0:
        server = serve(comm, tables, on=[0], clock=clock)
        comm.barrier()
        server.wait()
        return []
    found = []
    with Client(comm, tables) as client:
        comm.barrier()
        began = time.perf_counter()
        for units in lots[comm.rank - 1]:
            w = client.pull("w")
            time.sleep(unit * units)
            client.push("w", -RATE / (comm.size - 1) * CURVATURE * w)
            client.tick()
            found.append([time.perf_counter() - began, float(CURVATURE @ (w * w) / CURVATURE.sum())])
    return found


def row(
    machines: str, clock: str, lots: Sequence[Sequence[int]], found: Sequence[Sequence[Sequence[float]]], unit: float
) -> dict[str, Any]:
    """The workers' findings, beside the prediction."""
    steps = len(lots[0])
    measured = sum(each[-1][0] for each in found) / len(found) / steps / unit
    every = sorted(tuple(pair) for each in found for pair in each)
    above = [at for at, (_, value) in enumerate(every) if not value < ENOUGH]
    until = above[-1] + 1 if above else 0
    enough = every[until][0] / unit if until < len(every) else None
    return {
        "machines": machines, "clock": clock, "predicted": predicted(lots, staleness(clock)), "measured": measured,
        "value": every[-1][1], "enough": enough,
    }  # fmt: skip


def asked(steps: int, unit: float, workers: int, clocks: str) -> list[dict[str, Any]]:
    """The rows."""
    return found_here(again(MODULE, steps, unit, clocks), workers + 1, "stragglers", PATIENCE)


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    enough = "-" if found["enough"] is None else f"{found['enough']:.0f}"
    return (
        f"| {found['machines']} | {found['clock']} | {found['predicted']:.2f} | {found['measured']:.2f} "
        f"| {found['measured'] / found['predicted']:.2f} | {found['value']:.1e} | {enough} |"
    )


def main() -> int:
    o = arguments(MODULE, __doc__, None, steps=100, unit=0.03, workers=4, clocks=CLOCKS)
    heading(("machines", "clock", "units predicted", "measured", "ratio", "value at the end", "units until 0.01"))
    print("\n".join(line(each) for each in asked(o.steps, o.unit, o.workers, o.clocks)))
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
