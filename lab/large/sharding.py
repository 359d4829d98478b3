"""The bytes, memory and computation of an optimizer in shards, beside one that is whole.

    python -m hocket.lab.large.sharding [--ranks 2,4] [--floats 1000000] [--steps 50]       as root

The ranks are in a network namespace of their own, and talk over TCP: bytes are those of its loopback device, headers
and all, by rank and step, beside the law's multiple of (p-1)/p n.  `update` is the time of a core (not of the clock)
that a rank spends on its optimizer.  Bits: after all steps each rank's parameters are those of the whole optimizer.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.hosts import sent
from hocket.training import Adam, Sharded

MODULE = "hocket.lab.large.sharding"
PATIENCE, LAYERS = 500.0, 8
LAWS = {"whole": 2, "stage 1": 2, "stage 2": 2, "stage 3": 3}
"""Multiples of (p-1)/p n bytes that a rank sends in a step."""
Array = np.ndarray[Any, Any]


class Timed(Adam):
    """Counts the seconds of a core that its steps take."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seconds: list[float] = []

    def apply(self, *args: Any) -> None:
        began = time.thread_time()
        super().apply(*args)
        self.seconds.append(time.thread_time() - began)


class Whole:
    """Every rank averages all gradients, and steps all parameters."""

    stage = 0

    def __init__(self, optimizer: Timed, comm: Any, parameters: dict[str, Array]) -> None:
        self.optimizer, self.comm, self.parameters, self.steps = optimizer, comm, parameters, 0
        self.x = np.concatenate([each.ravel() for each in parameters.values()])
        self.slots = {name: np.zeros_like(self.x) for name in optimizer.slots}

    def step(self, gradients: dict[str, Array]) -> None:
        self.steps += 1
        g = np.concatenate([each.ravel() for each in gradients.values()])
        self.comm.allreduce(g, "avg", order="rank")
        self.optimizer.apply(self.x, g, self.slots, self.steps)
        for each, part in zip(self.parameters.values(), np.split(self.x, LAYERS), strict=True):
            each[...] = part


def rank(floats: str, steps: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding."""
    wanted: Array | None = None
    with hocket.init(transport="tcp") as comm:
        for name in LAWS:
            theta = {f"w{i}": np.full(int(floats) // LAYERS, 0.5, np.float32) for i in range(LAYERS)}
            optimizer = Timed(lr=0.01)
            made: Any = Whole(optimizer, comm, theta)
            if name != "whole":
                stage, each = int(name[-1]), [[name] for name in theta]
                made = Sharded(optimizer, comm, theta, stage=stage, units=each if stage == 3 else None)
            found, ends = _run(comm, made, theta, int(steps))
            wanted = ends if wanted is None else wanted
            held = sum(each.nbytes for each in made.slots.values())
            update = comm.allreduce(sorted(optimizer.seconds)[int(steps) // 2], "avg")
            same = bool(comm.allreduce(int((ends == wanted).all()), "min"))
            if comm.rank == 0:
                row = {"what": name, "ranks": comm.size, "held": held, "update": update, "same": same, **found}
                print(json.dumps({**row, "n": 4 * int(floats)}), flush=True)


def _run(comm: Any, made: Any, theta: dict[str, Array], steps: int) -> tuple[dict[str, float], Array]:
    """Bytes of a rank and seconds of a step; and the parameters at the end."""
    given = {name: np.random.default_rng([comm.rank, i]).normal(size=x.size).astype(x.dtype) for i, (name, x) in
             enumerate(theta.items())}  # fmt: skip

    def one() -> None:
        for _ in range(2 if made.stage == 3 else 0):  # the forward pass, the backward pass
            for name in theta:
                with made.gathered(name):
                    pass
        made.step(given)

    one()
    comm.barrier()
    before, began = sent("lo"), time.perf_counter()
    comm.barrier()
    for _ in range(steps - 1):
        one()
    comm.barrier()
    seconds, nbytes = time.perf_counter() - began, sent("lo") - before
    found = {"bytes": nbytes / comm.size / (steps - 1), "step": seconds / (steps - 1)}
    comm.barrier()
    if made.stage == 3:
        with made.gathered(*theta) as some:
            theta = {name: np.array(some[name]) for name in theta}
    return found, np.concatenate([each.ravel() for each in theta.values()])


def line(row: dict[str, Any], whole: dict[str, Any]) -> str:
    p, law = row["ranks"], LAWS[row["what"]]
    unit = (p - 1) / p * row["n"]
    return (
        f"| {row['what']} | {p} | {row['bytes'] / unit:.3f} | {law} | {row['held'] / whole['held']:.3f} "
        f"| {row['update'] * 1e3:.2f} | {row['update'] / whole['update']:.2f} | {row['step'] * 1e3:.1f} "
        f"| {'equal' if row['same'] else 'DIFFER'} |"
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(MODULE, __doc__, argv, ranks="2,4", floats=1_000_000, steps=50)
    heading([
        "what", "ranks", "bytes of a rank and step, in (p-1)/p n", "law", "optimizer memory, of the whole's",
        "update, ms", "of the whole's", "step, ms", f"bits after {options.steps} steps",
    ])  # fmt: skip
    for ranks in map(int, options.ranks.split(",")):
        with cabled() as names:
            rows = found_on(names[:1], ranks, again(MODULE, options.floats, options.steps), "sharding", PATIENCE)
        for row in rows:
            print(line(row, rows[0]), flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
