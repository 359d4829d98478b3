"""Which method averages these vectors fastest on these links?  Measured, not guessed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.compression.compressor import Compressor

METHODS = ("int8", "int4", "powersgd:4", "topk:0.01")
"""Methods to try, the mildest first."""
WORTH = 0.8
"""The part of a milder method's time that is worth its losses: a method that loses more is taken from there on."""
CALLS = 3


class Measured(NamedTuple):
    """The measurement, the same on all ranks."""

    method: str | None
    """None: float32 is as fast."""
    seconds: dict[str, float]
    """Seconds of one average of all vectors, by method."""

    def __str__(self) -> str:
        times = {name: f"{1e3 * seconds:.3g} ms" for name, seconds in self.seconds.items()}
        best = self.method or "float32"
        rest = ", ".join(f"{name} {text}" for name, text in times.items() if name not in ("float32", best))
        gain = f"{best}: {times['float32']} -> {times[best]}" if self.method else f"float32: {times['float32']}"
        return f"{gain} (also tried: {rest})"


def choose(comm: Any, shapes: Sequence[tuple[int, ...]], methods: Sequence[str] = METHODS) -> Measured:
    """Average random vectors of these shapes by each method, and in float32.  All ranks call it.

    A method that loses more than another must be a fifth faster than it.  How well a model learns with one is not
    measured: docs/compression.md has that.  Cost: four averages with each method.
    """
    dice = np.random.default_rng(comm.rank)
    xs = [dice.standard_normal(shape, np.float32) for shape in shapes]
    keys = [str(place) for place in range(len(xs))]
    whole = np.concatenate([x.reshape(-1) for x in xs]) if xs else np.empty(0, np.float32)
    seconds = {"float32": _time(comm, lambda: comm.allreduce(whole, "avg"))}
    best: str | None = None
    for name in methods:
        compressor = Compressor(comm, name)
        seconds[name] = _time(comm, lambda tried=compressor: tried.allreduce_all(xs, keys))
        if seconds[name] < WORTH * seconds[best or "float32"]:
            best = name
    return Measured(best, seconds)


def _time(comm: Any, call: Any) -> float:
    """The fastest of some calls, on the slowest rank."""
    took = []
    for _ in range(CALLS + 1):
        comm.barrier()
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return float(comm.allreduce(min(took[1:]), "max"))
