"""Does training that averages now and then end where training that averages every step does?

    hocket run -n 4 -- python -m hocket.lab.outer.accuracy [--shards iid|sorted] [--rows "every 16,..."] [--models 25]

The digits, network and models of hocket.lab.outer.digits, 40 epochs: 880 steps.  Each rank keeps its own
momentum.  `--shards sorted`: each rank has other digits than the rest; there outer momentum shows what it is for.
Controls: DiLoCo's 0.7 and 0.9 are for longer trainings than this, and ranks that never average.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.lab.outer.digits import (
    EACH,
    LAYERS,
    MOMENTUM,
    WORDS,
    Array,
    Data,
    gradients,
    judged,
    rate_of,
    tabled,
    weights,
)
from hocket.lab.program import arguments
from hocket.training import DiLoCo, LocalSGD, NoLoCo, Outer, SparseLoCo, StreamingDiLoCo

EPOCHS = 40
Make = Callable[[Any, dict[str, Array]], Outer]


def _every(k: int) -> Make:
    return lambda comm, theta: LocalSGD(comm, theta, every=k)


def _diloco(k: int, lr: float, momentum: float, **more: Any) -> Make:
    return lambda comm, theta: DiLoCo(comm, theta, every=k, lr=lr, momentum=momentum, **more)


ROWS: dict[str, Make] = {
    "every 1": _every(1),
    "every 4": _every(4),
    "every 16": _every(16),
    "every 64": _every(64),
    "outer 0.7, 0.5, every 64": _diloco(64, 0.7, 0.5),
    "outer 0.7, 0.5, every 16, int8": _diloco(16, 0.7, 0.5, send="int8"),
    "streaming, 4 fragments, delay 2, every 16": lambda comm, theta: StreamingDiLoCo(
        comm, theta, every=16, fragments=4, delay=2, lr=0.7, momentum=0.5, mix=0.5
    ),
    "SparseLoCo 3 %, every 16": lambda comm, theta: SparseLoCo(comm, theta, every=16, send="twobits:0.03"),
    "NoLoCo, every 16": lambda comm, theta: NoLoCo(comm, theta, every=16),
    "control: DiLoCo 0.7, 0.9, every 16": _diloco(16, 0.7, 0.9),
    "control: never": _every(1 << 30),
}


class AccuracyRun(NamedTuple):
    accuracy: Array
    """Accuracy of each model, in percent."""
    loss: float
    traffic: float
    """Fragments' bytes on the wire, as a part of all parameters at every step."""
    rounds: int
    seconds: float


def trained(comm: Any, make: Make, known: Data, epochs: int, shards: str) -> AccuracyRun:
    """All models side by side."""
    models, count = known.digits.shape
    depth, began, which = len(LAYERS) - 1, time.perf_counter(), np.arange(models)[:, None]
    theta = {f"{'w' if i < depth else 'b'}{i % depth}": each for i, each in enumerate(weights(models))}
    parameters = [*theta.values()]
    speeds = [np.zeros_like(one) for one in parameters]
    dice = [np.random.default_rng([11, model]) for model in range(models)]
    share, steps, reports = count // comm.size, count // (EACH * comm.size), []
    outer = make(comm, theta)
    for epoch in range(epochs):
        rate = rate_of(epoch, epochs)
        if shards == "sorted":  # each rank draws of its own share
            orders = comm.rank * share + np.stack([d.permutation(share) for d in _own(dice, comm, epoch)])
        else:
            orders = np.stack([d.permutation(count)[comm.rank :: comm.size] for d in dice])
        for step in range(steps):
            taken = orders[:, step * EACH : (step + 1) * EACH]
            found = gradients(parameters, known.images[which, taken], known.digits[which, taken])
            for parameter, speed, gradient in zip(parameters, speeds, found, strict=True):
                speed *= MOMENTUM
                speed += gradient
                parameter -= rate * speed
            reports += [outer.step()]
    if outer.every < epochs * steps:
        outer.finish()
    if not outer.replicated:  # whose ranks end with parameters of their own
        for each in parameters:
            comm.allreduce(each, "avg", each)
    made = [report for report in reports if report]
    accuracy, loss = judged(parameters, known)
    whole = epochs * steps * sum(one.nbytes for one in parameters)
    traffic = sum(report.bytes for report in made) / whole
    return AccuracyRun(accuracy, loss, traffic, len(made), time.perf_counter() - began)


def _own(dice: Sequence[Any], comm: Any, epoch: int) -> list[Any]:
    """A rank's own random numbers, model by model."""
    return [np.random.default_rng([13, model, comm.rank, epoch]) for model in range(len(dice))]


def main(argv: Sequence[str] | None = None) -> int:
    def cost(made: AccuracyRun) -> str:
        return f"{made.rounds} | {f'1/{1 / made.traffic:.1f}' if made.traffic else 0} | {made.seconds:.0f}"

    options = arguments("hocket.lab.outer.accuracy", __doc__, argv, **WORDS, epochs=EPOCHS)
    return tabled(options, ROWS, lambda shards: [*ROWS], ";", "rounds | traffic | s", trained, cost)


if __name__ == "__main__":
    sys.exit(main())
