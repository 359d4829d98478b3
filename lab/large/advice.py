"""Are the meshes that `hocket advise` prefers the fastest, and do their steps take what it says?

    python -m hocket.lab.large.advice [--best 3] [--steps 5]       as root

A transformer's step on 8 ranks, four on each of two hosts (network namespaces) with a slow cable between them: what it
sends is sent, by `Mesh`, `Pipeline` and `Sharded`; what it computes is a sleep, as 2 cores cannot compute for 8 ranks.
So the comparison is of what is sent, of waiting, and of bubbles; computation is as the prediction has it.  Medians of
the slowest rank.  Wanted: the order of the best three right, and times within 25 %.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.algorithms import topology
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.tools.advise.costs import Costs, MeshPlan, Model
from hocket.training import SGD, Mesh, Pipeline, Sharded

MODULE = "hocket.lab.large.advice"
PATIENCE, RATE, SPEED, RANKS = 500.0, "100mbit", 5e8, 4
MODEL = Model(parameters=1e6, layers=8, hidden=96, sequence=64, batch=8, itemsize=4, state=8)
THERE = f"hosts:2x{RANKS},inside=50us/1GB/shared,link=200us/96Mbit"
"""96 of 100 Mbit/s: without the heads of packets."""
Array = np.ndarray[Any, Any]


class SleepingStage:
    """Layers that sleep, and sum what tensor-parallel layers sum: twice in either pass."""

    def __init__(self, layers: int, seconds: float, axis: Any) -> None:
        self.layers, self.seconds, self.axis = layers, seconds, axis

    def forward(self, x: Array) -> tuple[Array, Any]:
        return self._through(x, self.seconds / 3), None

    def backward(self, dy: Array, kept: Any) -> Array:
        return self._through(dy, self.seconds * 2 / 3)

    def _through(self, x: Array, seconds: float) -> Array:
        for _ in range(self.layers):
            time.sleep(seconds)
            for _ in range(2 if self.axis.size > 1 else 0):
                self.axis.allreduce(x.copy())
        return x


def rank(best: str, steps: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding."""
    with hocket.init() as comm:
        for plan in plans()[: int(best)]:
            found = _measured(comm, plan, int(steps))
            if comm.rank == 0:
                print(json.dumps({"plan": plan, "seconds": found}), flush=True)


def plans() -> list[MeshPlan]:
    """Plans with stage 1, which is what is measured."""
    costs = Costs(MODEL, topology(THERE), 2 * RANKS, SPEED)
    return [plan for plan in costs.plans() if plan.stage == 1]


def _measured(comm: Any, plan: MeshPlan, steps: int) -> float:
    mesh = Mesh(comm, {"data": plan.data, "pipe": plan.pipe, "tensor": plan.tensor})
    rows = MODEL.batch // plan.data // plan.micro * MODEL.sequence
    layers, count = MODEL.layers // plan.pipe, int(MODEL.parameters / plan.pipe / plan.tensor)
    stage = SleepingStage(layers, plan.compute / plan.micro / layers, mesh["tensor"])
    like = np.zeros((rows, MODEL.hidden), np.float32)
    pipe = Pipeline(stage, mesh["pipe"], like, micro=plan.micro)
    batch, parameters = np.zeros((rows * plan.micro, MODEL.hidden), np.float32), {"w": np.zeros(count, np.float32)}
    sharded = Sharded(SGD(lr=1e-30), mesh["data"], parameters, order="any") if plan.data > 1 else None
    seconds = []
    for _ in range(steps + 1):
        comm.barrier()
        began = time.perf_counter()
        pipe.step(batch if pipe.first else None, lambda y, micro: (0.0, y))
        if sharded:
            sharded.step(parameters)
        seconds.append(comm.allreduce(time.perf_counter() - began, "max"))
    return float(median(seconds[1:]))


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(MODULE, __doc__, argv, best=3, steps=5)
    heading(["data", "pipe", "tensor", "micro-batches", "predicted, ms", "measured, ms", "measured / predicted"])
    with cabled(RATE) as made:
        rows = found_on(made, RANKS, again(MODULE, options.best, options.steps), "advice", PATIENCE)
    for row in rows:
        plan = MeshPlan(*row["plan"])
        print(
            f"| {plan.data} | {plan.pipe} | {plan.tensor} | {plan.micro} | {plan.step * 1e3:.1f} "
            f"| {row['seconds'] * 1e3:.1f} | {row['seconds'] / plan.step:.2f} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
