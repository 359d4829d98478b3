"""The idle time of a pipeline's ranks, and how much they keep, beside the law.

    python -m hocket.lab.large.pipelines [--ranks 4] [--micro 1,4,8,32] [--pass 20]

A pass sleeps, as 2 cores cannot compute for 4 ranks, and then does a small layer, whose gradients are compared with
those of one rank, bit for bit.  Idle is what is left of the slowest rank's step without its own passes, as it has
measured them, in the median of some steps.  Law: (K-1)/(M V + K-1), with V stages on each of K ranks; of "pipedream"
that is kept full the M of all steps count.

A second table has stages of four layers, whose backward passes take twice as long as forward ones, with and without
`recompute`: the time of a step, and the memory that a rank takes in it, by tracemalloc.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, findings, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.training import Pipeline
from hocket.training.large.stage import Chain

MODULE = "hocket.lab.large.pipelines"
PATIENCE, WIDTH, CHUNKS, STEPS = 300.0, 16, 2, 5
ROWS, LAYERS = 512, 4
"""Rows of a micro-batch, and layers of a stage, of the second table."""
WAYS = {"gpipe": 1, "1f1b": 1, "pipedream": 1, "pipedream, kept full": 1, "interleaved": CHUNKS}
"""Schedules, and stages on each rank."""
Array = np.ndarray[Any, Any]


class SlowLayer:
    """tanh(x w), after so many seconds; it counts them."""

    def __init__(self, number: int, seconds: float = 0.0, back: int = 1) -> None:
        self.back = back
        self.w = np.random.default_rng(number).normal(size=(WIDTH, WIDTH))
        self.parameters, self.gradient = {"w": self.w}, np.zeros_like(self.w)
        self.seconds, self.took = seconds, 0.0

    @contextlib.contextmanager
    def _pass(self, times: int = 1) -> Iterator[None]:
        began = time.perf_counter()
        time.sleep(self.seconds * times)
        yield
        self.took += time.perf_counter() - began

    def forward(self, x: Array) -> tuple[Array, Any]:
        with self._pass():
            y = np.tanh(x @ self.w)
        return y, (x, y)

    def backward(self, dy: Array, kept: Any) -> Array:
        x, y = kept
        with self._pass(self.back):
            dz = dy * (1 - y * y)
            self.gradient += x.T @ dz
            return dz @ self.w.T  # type: ignore[no-any-return]


def loss(y: Array, micro: int) -> tuple[float, Array]:
    return float((y * y).sum() / 2), y


def alone(stages: int, batch: Array, micro: int) -> list[Array]:
    """The gradients of one rank."""
    layers = [SlowLayer(number) for number in range(stages)]
    whole = Chain(layers)
    for x in np.split(batch, micro):
        y, kept = whole.forward(x)
        whole.backward(y, kept)
    return [layer.gradient for layer in layers]


def rank(micros: str, milliseconds: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding."""
    with hocket.init() as comm:
        for way, chunks in WAYS.items():
            for micro in map(int, micros.split(",")):
                if way == "interleaved" and micro % comm.size:
                    continue
                row = _measured(comm, way, chunks, micro, float(milliseconds) / 1e3)
                if comm.rank == 0:
                    print(json.dumps({"way": way, "micro": micro, **row}), flush=True)
        for way in ("gpipe", "1f1b"):
            for micro in map(int, micros.split(",")):
                row = _again(comm, way, micro, float(milliseconds) / 1e3)
                if comm.rank == 0:
                    print(json.dumps({"again": way, "micro": micro, **row}), flush=True)


def _measured(comm: Any, way: str, chunks: int, micro: int, seconds: float) -> dict[str, Any]:
    batch = np.random.default_rng(5).normal(size=(2 * micro, WIDTH))
    layers = [SlowLayer(chunk * comm.size + comm.rank, seconds / chunks) for chunk in range(chunks)]
    schedule, full = way.split(",")[0], way.endswith("full")
    pipe = Pipeline(
        layers if chunks > 1 else layers[0], comm, np.empty((2, WIDTH)), micro=micro, schedule=schedule,
        update=(lambda: None) if schedule == "pipedream" else None, drain=not full,
    )  # fmt: skip
    idle = []
    for _ in range(1 if full else STEPS):
        for layer in layers:
            layer.took = 0.0
            layer.gradient[...] = 0
        comm.barrier()
        began = time.perf_counter()
        for _ in range(STEPS if full else 1):
            pipe.step(batch if pipe.first else None, loss)
        pipe.finish()
        took, own = time.perf_counter() - began, sum(layer.took for layer in layers)
        longest = comm.allreduce(np.array([took, own]), "max")
        idle.append(1 - float(longest[1] / longest[0]))
    wanted = alone(chunks * comm.size, batch, micro)
    if full:
        wanted = alone(comm.size, np.tile(batch, (STEPS, 1)), micro * STEPS)
    same = all((layer.gradient == wanted[i * comm.size + comm.rank]).all() for i, layer in enumerate(layers))
    return {
        "idle": median(idle), "ranks": comm.size,
        "law": (comm.size - 1) / (micro * chunks * (STEPS if full else 1) + comm.size - 1),
        "kept": comm.allreduce(pipe.most, "max"), "same": bool(comm.allreduce(int(same), "min")),
    }  # fmt: skip


def _again(comm: Any, way: str, micro: int, seconds: float) -> dict[str, Any]:
    """The seconds of a step and the bytes of the first rank, without and with another forward pass."""
    batch, ends = np.random.default_rng(5).normal(size=(ROWS * micro, WIDTH)), []
    found: dict[str, float] = {}
    for recompute in (False, True):
        layers = [SlowLayer(LAYERS * comm.rank + i, seconds / LAYERS, 2) for i in range(LAYERS)]
        like = np.empty((ROWS, WIDTH))
        pipe = Pipeline(Chain(layers), comm, like, micro=micro, schedule=way, recompute=recompute)
        took, nbytes = [], []
        for traced in (False, False, False, True):  # which slows it
            comm.barrier()
            if traced:
                tracemalloc.start()
            began = time.perf_counter()
            pipe.step(batch if pipe.first else None, loss)
            if traced:
                nbytes.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            else:
                took.append(float(comm.allreduce(time.perf_counter() - began, "max")))
        found |= {f"seconds {recompute}": median(took), f"bytes {recompute}": nbytes[0]}
        ends.append(np.concatenate([layer.gradient for layer in layers]))
    return {**found, "ranks": comm.size, "same": bool(comm.allreduce(int((ends[0] == ends[1]).all()), "min"))}


def run(ranks: int, micros: str, milliseconds: float) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "hocket", "run", "-n", str(ranks), "--no-prefix", "--"]
    words += again(MODULE, micros, milliseconds)
    return findings([(words, {**os.environ, "OMP_NUM_THREADS": "1"})], "pipelines", PATIENCE)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(MODULE, __doc__, argv, ranks=4, micro="1,4,8,32", **{"pass": 20.0})
    heading(["schedule", "ranks", "micro-batches", "idle", "law", "off by", "passes kept at once", "gradients"])
    rows = run(options.ranks, options.micro, getattr(options, "pass"))
    for row in [row for row in rows if "way" in row]:
        print(
            f"| {row['way']} | {row['ranks']} | {row['micro']} | {row['idle']:.3f} | {row['law']:.3f} "
            f"| {row['idle'] / row['law'] - 1:+.1%} | {row['kept']} | {'equal' if row['same'] else 'DIFFER'} |",
            flush=True)  # fmt: skip
    print()
    heading([
        "schedule", "ranks", "micro-batches", "ms", "ms, recomputed", "ratio (law 1.33)", "kB of rank 0",
        "kB, recomputed", "gradients",
    ])  # fmt: skip
    for row in [row for row in rows if "again" in row]:
        ms, kb = ([row[f"{what} {way}"] * scale for way in (False, True)] for what, scale in
                  (("seconds", 1e3), ("bytes", 1e-3)))  # fmt: skip
        print(
            f"| {row['again']} | {row['ranks']} | {row['micro']} | {ms[0]:.0f} | {ms[1]:.0f} | {ms[1] / ms[0]:.2f} "
            f"| {kb[0]:.0f} | {kb[1]:.0f} | {'equal' if row['same'] else 'DIFFER'} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
