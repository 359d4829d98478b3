"""Iterations of real models' layers: by push and pull through a server, and by an allreduce.  Root.

    python -m hocket.lab.server.duplex [--rates 100mbit,1gbit] [--quick]

Two hosts with a cable.  Computation is sleep and bytes are as in hocket.lab.overlap.profiles: `rho` is a push of all
over computation.  A layer's gradient is pushed when it is there, and its values are pulled behind it, so that both ways
of the cable are in use at once (hocket.training.Layers).

    FIFO        a worker, and a server on the other host; a layer is a slice, in the order of the backward pass, and all
                are waited for before the next forward pass
    P3          the same, but slices are a 200th of the model, one of the first layer's goes always first, and each
                layer waits for its own
    both serve  a worker on each host, which serves half of each layer, too: the same bytes as an allreduce of two; a
                slice steps once both have pushed it (mean=True)
    allreduce   of these two: hocket.training.Scheduler with order="priority"

Beside FIFO and P3 what the event model of hocket.lab.overlap.profiles says.  Numbers are iterations, computation = 1.
The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, Protocol

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, found_on, hosts_may_come, main_or_rank
from hocket.lab.overlap.profiles import CASES, PROFILES, SKIP, Profile, model
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.cables import cables
from hocket.system.namespaces.hosts import hosts
from hocket.training import Client, Layers, Range, Scheduler, serve

MODULE = "hocket.lab.server.duplex"
RATES = {"100mbit": 12.5e6, "1gbit": 125e6}
"""Bytes a second of the cable."""
PAYLOAD = 0.995
"""The part of it that are not headers."""
SLICES = 200
WAYS = ("FIFO", "P3", "both serve", "allreduce")
PATIENCE = 600.0


class Travels(Protocol):
    """`Layers`, or `Scheduler`."""

    def ready(self, name: str, values: Any) -> None: ...
    def wait(self, name: str) -> Any: ...


def tables(profile: Profile, floats: int, way: str) -> dict[str, Range]:
    """A table for each layer, cut into slices but for FIFO."""
    counts = {f"{i:02}": max(1, int(share * floats)) for i, share in enumerate(profile.parameters)}
    nbytes = 1 << 40 if way == "FIFO" else max(4, 4 * floats // SLICES)
    return {
        name: Range(count, optimizer="put", slice=nbytes, mean=way == "both serve") for name, count in counts.items()
    }  # fmt: skip


def rank(what: str, rho: str, total: str, steps: str, rate: str) -> None:
    """Measure; rank 0 prints a line of JSON."""
    profile, seconds = PROFILES[what], float(total)
    floats = int(seconds * float(rho) * RATES[rate] * PAYLOAD / 4)
    found = {}
    with hocket.init() as comm:
        for way in WAYS:
            times = _times(comm, way, tables(profile, floats, way), profile, seconds, int(steps))
            found[way] = comm.share(times)[1]
        if comm.rank == 0:
            print(json.dumps({way: median(np.diff(each)[SKIP:].tolist()) / seconds for way, each in found.items()}))


def _times(
    comm: Any, way: str, made: dict[str, Range], profile: Profile, seconds: float, steps: int
) -> list[float]:  # fmt: skip
    """When this rank's iterations began; none of a server."""
    grads = {name: np.ones(table.shape, np.float32) for name, table in made.items()}
    if way == "allreduce":
        scheduler = Scheduler(comm, finite=False)
        for name, grad in grads.items():
            scheduler.declare(name, grad)
        scheduler.seal()
        return _iterations(scheduler, scheduler.step, grads, profile, seconds, steps, True)
    both = way == "both serve"
    server: Any = contextlib.nullcontext()
    if both or comm.rank == 0:
        server = serve(comm, made, on=[0, 1] if both else [0], works=both, clock="bsp" if both else "async")
    if not both and comm.rank == 0:
        server.wait()
        return []
    with server, Client(server) if both else Client(comm, made) as client:
        layers = Layers(client, {name: np.zeros_like(grad) for name, grad in grads.items()}, first=way != "FIFO")
        return _iterations(layers, layers.end, grads, profile, seconds, steps, way != "FIFO")


def _iterations(
    travels: Travels, end: Any, grads: dict[str, Any], profile: Profile, seconds: float, steps: int, first: bool
) -> list[float]:  # fmt: skip
    times = []
    for i in range(steps):
        for name in grads if i and not first else ():
            travels.wait(name)
        for place, (name, share) in enumerate(zip(grads, profile.operations, strict=True)):
            if i and first:
                travels.wait(name)
            if not place:
                times.append(time.perf_counter())
            time.sleep(share * seconds / 3)
        for name, share in reversed(list(zip(grads, profile.operations, strict=True))):
            time.sleep(share * seconds * 2 / 3)
            travels.ready(name, grads[name])
        end()
    for name in grads:
        if not np.all(travels.wait(name) == 1):
            raise SystemExit(f"layer {name}: the values are not those that were sent")
    return times


def asked(what: str, rho: float, seconds: float, steps: int, rate: str) -> dict[str, float]:
    """Iterations, by way."""
    made: AbstractContextManager[Any] = cables(2, RATES[rate], 0.0) if rate == "100mbit" else hosts(rate)
    with made as names:
        (found,) = found_on(names, 1, again(MODULE, what, rho, seconds, steps, rate), "duplex", PATIENCE)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    o = arguments(MODULE, __doc__, argv, rates="100mbit,1gbit", quick=False)
    hosts_may_come()
    heading(("model", "rho", "cable", "FIFO", "its model", "P3", "its model", "gain", *WAYS[2:]))
    for rate in o.rates.split(","):
        for what, rho in CASES[:1] if o.quick else CASES:
            found = asked(what, rho, *(0.1, 5) if o.quick else (1.0, 7) if rate == "100mbit" else (0.3, 9), rate)
            fifo, p3 = (model(PROFILES[what], rho, first, 2, SLICES if first else None) for first in (False, True))
            figures = [found["FIFO"], fifo, found["P3"], p3, found["FIFO"] / found["P3"], *(found[w] for w in WAYS[2:])]
            print(f"| {what} | {rho} | {rate} | {' | '.join(f'{x:.2f}' for x in figures)} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
