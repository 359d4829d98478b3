"""Iterations of real models' layers beside what the event model says, by push and pull through a server.  Root.

    python -m hocket.lab.server.duplex [--quick]

A worker and a server, each on a host of its own, 100 Mbit/s each way.  Computation is sleep and bytes are as in
hocket.lab.overlap.profiles; a layer's gradient is pushed when it is there, and its values are pulled behind it, so
that both ways of the cable are in use at once.  FIFO: a layer is one piece, in the order of the backward pass, and all
are waited for before the next forward pass.  P3: slices of a 200th of the model, always one of the first layer's,
and each layer waits for its own.  Numbers are iterations, computation = 1.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from heapq import heappop, heappush
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import found_on, main_or_rank
from hocket.errors import ArgumentError
from hocket.lab.overlap.profiles import CASES, PROFILES, SKIP, Profile, model
from hocket.lab.overlap.shaped import heading
from hocket.system.namespaces.cables import cables
from hocket.system.namespaces.hosts import refusal, remove_stale
from hocket.training import Client, Range, serve

MODULE = "hocket.lab.server.duplex"
RATE, PAYLOAD = 12.5e6, 0.995
"""Bytes a second of the cable, and how much of it are not headers."""
SLICES = 200
WAYS = {"FIFO": (False, None), "P3": (True, SLICES)}
"""Does the first layer go first, and in how many slices?"""
WINDOW = 8
"""Slices that are pushed and not acknowledged: what is on its way cannot be overtaken, and an acknowledgement waits
behind the answers before it."""
PATIENCE = 600.0


def cut(profile: Profile, floats: int, slices: int | None) -> list[list[int]]:
    """Floats of each piece of each layer."""
    counts = [max(1, int(share * floats)) for share in profile.parameters]
    pieces = [max(1, min(n, round((slices or 0) * share))) for n, share in zip(counts, profile.parameters, strict=True)]
    return [[n // k + (i < n % k) for i in range(k)] for n, k in zip(counts, pieces, strict=True)]


class Layers:
    """A worker's layers: `ready` in the backward pass, `wait` in the forward pass.  A thread of its own sends."""

    def __init__(self, client: Client, pieces: Sequence[Sequence[int]], first: bool) -> None:
        self._client, self._pieces, self._first = client, pieces, first
        self._given = [[np.ones(n, np.float32) for n in each] for each in pieces]
        self._rooms = [[np.zeros_like(x) for x in each] for each in self._given]
        self._heap: list[tuple[int, int, int]] = []
        self._handles: list[list[Any]] = [[] for _ in pieces]
        self._turn, self._over, self._changed = 0, False, threading.Condition()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def ready(self, layer: int) -> None:
        with self._changed:
            self._handles[layer] = []
            for i in range(len(self._pieces[layer])):
                self._turn += 1
                heappush(self._heap, (layer if self._first else self._turn, layer, i))
            self._changed.notify_all()

    def wait(self, layer: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._handles[layer]) == len(self._pieces[layer]))
        if not all(np.all(handle.wait() == 1) for handle in self._handles[layer]):
            raise SystemExit(f"layer {layer}: what was pulled is not what was pushed")

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._heap or self._over)
                if self._over:
                    return
                _, layer, i = heappop(self._heap)
            handle = self._client.push_pull(
                name(layer, i), self._given[layer][i], out=self._rooms[layer][i], async_op=True
            )
            with self._changed:
                self._handles[layer].append(handle)
                self._changed.notify_all()


def name(layer: int, piece: int) -> str:
    return f"{layer:02}.{piece:03}"


def rank(what: str, rho: str, total: str, steps: str) -> None:
    """Measure; rank 1 is the worker, and rank 0 prints a line of JSON."""
    profile, seconds = PROFILES[what], float(total)
    floats = int(seconds * float(rho) * RATE * PAYLOAD / 4)
    found = {}
    with hocket.init() as comm:
        for way, (first, slices) in WAYS.items():
            pieces = cut(profile, floats, slices)
            tables = {
                name(layer, i): Range(n, optimizer="put", slice=4 * n)
                for layer, each in enumerate(pieces) for i, n in enumerate(each)
            }  # fmt: skip
            times: list[float] = []
            if comm.rank == 0:
                serve(comm, tables, on=[0], clock="async").wait()
            else:
                window = WINDOW * 4 * max(max(each) for each in pieces) if first else 1 << 40
                with Client(comm, tables, window=window) as client:
                    layers = Layers(client, pieces, first)
                    times = [_iterate(layers, profile, seconds, i, first) for i in range(int(steps))]
                    for layer in range(len(pieces)):
                        layers.wait(layer)
                    layers.close()
            found[way] = comm.share(times)[1]
        if comm.rank == 0:
            print(json.dumps({way: median(np.diff(each)[SKIP:].tolist()) / seconds for way, each in found.items()}))


def _iterate(layers: Layers, profile: Profile, seconds: float, i: int, first: bool) -> float:
    """When its forward pass began."""
    began, count = 0.0, len(profile.operations)
    for layer in range(count if i and not first else 0):
        layers.wait(layer)
    for layer, share in enumerate(profile.operations):
        if i and first:
            layers.wait(layer)
        began = began or time.perf_counter()
        time.sleep(share * seconds / 3)
    for layer in reversed(range(count)):
        time.sleep(profile.operations[layer] * seconds * 2 / 3)
        layers.ready(layer)
    return began


def asked(what: str, rho: float, seconds: float, steps: int) -> dict[str, float]:
    """Iterations by FIFO and P3."""
    words = [sys.executable, "-m", MODULE, "rank", what, str(rho), str(seconds), str(steps)]
    with cables(2, RATE, 0.0) as names:
        (found,) = found_on(names, 1, words, "duplex", PATIENCE)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one model, to see that it runs")
    o = parser.parse_args(argv)
    if why := refusal():
        raise ArgumentError(why)
    remove_stale()
    heading(("model", "rho", "FIFO", "its model", "ratio", "P3", "its model", "ratio", "gain"))
    for what, rho in CASES[:1] if o.quick else CASES:
        found = asked(what, rho, *(0.1, 5) if o.quick else (1.0, 7))
        said = {way: model(PROFILES[what], rho, first, 2, slices) for way, (first, slices) in WAYS.items()}
        cells = [f"{x:.2f}" for way in WAYS for x in (found[way], said[way], found[way] / said[way])]
        print(f"| {what} | {rho} | {' | '.join(cells)} | {found['FIFO'] / found['P3']:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
