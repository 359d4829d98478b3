"""The time of a core that each method takes, and the link speed below which it pays.

    python -m hocket.lab.compression.cost [--rounds 7]

Gradients of ResNet-18's shapes, 47 MB, on two ranks that are threads of one process: seconds are those of one rank's
own core (`time.thread_time`) for a whole step, from its gradient to the average, in the median; what threads of one
process copy to each other is counted, too.  It pays below 8 (bytes of float32 - bytes sent) / seconds: there the cable
saves more than the cores take, where nothing hides behind the computation.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # before NumPy

import numpy as np

import hocket
from hocket.compression import Compressor
from hocket.lab.compression.ddp import resnet18
from hocket.lab.program import arguments, heading

METHODS = (
    "int8", "int4", "sign", "elias:4", "topk:0.01", "ef21:topk:0.01", "doublesqueeze:sign", "dgc:0.001",
    "powersgd:2", "powersgd:4",
)


def measured(comm: Any, method: str, rounds: int) -> list[float]:
    """Seconds of a step, bytes of float32, and bytes sent."""
    compressor = Compressor(comm, method)
    dice = np.random.default_rng(comm.rank)
    given = [dice.standard_normal(shape, np.float32) for shape in resnet18()]
    took = []
    for _ in range(rounds + 2):  # the first ones are longer: EF21's is whole, memory is new
        comm.barrier()
        began = time.thread_time()
        for i, gradient in enumerate(given):
            compressor.allreduce(gradient.copy(), key=f"{i}")
        took.append(time.thread_time() - began)
    every = [compressor.stats(f"{i}") for i in range(len(given))]
    whole, sent = sum(each.nbytes for each in every), sum(each.sent for each in every)
    copied = [_copies(given) for _ in range(rounds)]
    return [median(took[2:]) - median(copied), whole, sent]


def _copies(given: Sequence[Any]) -> float:
    began = time.thread_time()
    for gradient in given:
        gradient.copy()
    return time.thread_time() - began


def main(argv: Sequence[str] | None = None) -> int:
    rounds = arguments("hocket.lab.compression.cost", __doc__, argv, rounds=7).rounds
    heading(["method", "ms of a core", "GB/s of float32", "times fewer bytes", "pays below, Gbit/s"])
    for method in METHODS:
        with hocket.local_world(2) as world:
            seconds, whole, sent = world.run(measured, method, rounds)[0]
        cells = [f"{seconds * 1e3:.1f}", f"{whole / seconds / 1e9:.2f}", f"{whole / sent:.1f}"]
        print(f"| `{method}` | {' | '.join(cells)} | {8 * (whole - sent) / seconds / 1e9:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
