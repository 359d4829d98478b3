"""Iterations of real models' layers beside what the event model says, by allreduce over a slow cable.

    python -m hocket.lab.overlap.profiles [--rates 100mbit]          as root (system/namespaces/hosts.py)

Computation is sleep, forward : backward 1 : 2, shared out by the layers' operations; bytes by their parameters, so
many in all that communication takes `rho` times as long as computation.  FIFO waits for all averages before the next
forward pass; with P3 each layer waits for its own.  Numbers are iterations, computation = 1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import main_or_rank
from hocket.lab.program import arguments, calibrated, heading, on_a_cable, tell
from hocket.training import Scheduler

MODULE = "hocket.lab.overlap.profiles"
SKIP = 2
"""Steps that are not counted."""


class Profile(NamedTuple):
    """Each layer's part of the parameters and of the operations, in the order of the forward pass."""

    parameters: list[float]
    operations: list[float]


def _vgg19() -> Profile:
    convolutions = [(3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56), *[(256, 256, 56)] * 3,
                    (256, 512, 28), *[(512, 512, 28)] * 3, *[(512, 512, 14)] * 4]  # fmt: skip
    dense = [(25088, 4096), (4096, 4096), (4096, 1000)]
    weights = [9 * i * o + o for i, o, _ in convolutions] + [i * o + o for i, o in dense]
    return _shares(weights, [9 * i * o * s * s for i, o, s in convolutions] + [i * o for i, o in dense])


def _resnet50() -> Profile:
    """Its stages' blocks, as one layer each."""
    weights, operations = [9408, *[70_000] * 3, *[280_000] * 4, *[1_100_000] * 6, *[4_700_000] * 3, 2_048_000], [118e6]
    return _shares(weights, operations + [220e6] * 16 + [2e6])


def _sockeye() -> Profile:
    """A translation model: embeddings first, which are half of it, and little to compute."""
    return _shares([15e6, *[2e6] * 8, 8e6], [0.2, *[1.0] * 8, 2.0])


def _shares(parameters: Sequence[float], operations: Sequence[float]) -> Profile:
    return Profile([p / sum(parameters) for p in parameters], [o / sum(operations) for o in operations])


PROFILES = {"VGG-19": _vgg19(), "ResNet-50-like": _resnet50(), "Sockeye-like": _sockeye()}
CASES = [("VGG-19", 1.0), ("VGG-19", 2.0), ("VGG-19", 0.5), ("ResNet-50-like", 1.0), ("Sockeye-like", 1.0)]


SLICES = 1000
"""Slices of all bytes: so fine that a cable seems to change its mind at any time."""


def model(
    profile: Profile, rho: float, first: bool, ways: int = 1, slices: int | None = SLICES, iterations: int = 6
) -> float:  # fmt: skip
    """An iteration by the event model: a cable carries one piece after the other.

    `first`: always one of the first layer's, and each layer's forward pass waits for its own average; else in the order
    of the backward pass, and all wait for all.  `ways`: 1 of an allreduce; 2 of a server, where each piece is pushed,
    and pulled when the whole of it was, by a cable that has as much room for each.  `slices`: in how many pieces of one
    length all bytes are cut; None: a layer is a piece.
    """
    layers = range(len(profile.parameters))
    forward, backward = ([share * o for o in profile.operations] for share in (1 / 3, 2 / 3))
    waiting: list[list[tuple[int, int, float]]] = [[] for _ in range(ways)]
    """At each cable, heaps of (what goes first, layer, length)."""
    under_way: list[tuple[float, tuple[int, int, float]] | None] = [None] * ways
    left = dict.fromkeys(layers, 0)
    """Pieces that are not there."""
    clock, begins, turn = 0.0, [], 0

    def carry(until: float | None, need: int | None) -> None:
        """Let the cables work until a moment, or until a layer (-1: all) is there."""
        nonlocal clock
        while need is None or (any(left.values()) if need == -1 else left[need]):
            for way in range(ways):
                if under_way[way] is None and waiting[way]:
                    piece = heappop(waiting[way])
                    under_way[way] = clock + piece[2], piece
            way = min(range(ways), key=lambda way: under_way[way] or (inf,))
            ending = under_way[way]
            if ending is None or until is not None and ending[0] > until:
                break
            clock, under_way[way] = ending[0], None
            if way + 1 < ways:
                heappush(waiting[way + 1], ending[1])
            else:
                left[ending[1][1]] -= 1
        clock = max(clock, until or 0.0)

    for _ in range(iterations):
        for i in layers:
            carry(None, i if first else -1)
            begins += [clock] if i == 0 else []
            carry(clock + forward[i], None)
        for i in reversed(layers):
            carry(clock + backward[i], None)
            left[i] = max(1, round((slices or 0) * profile.parameters[i]))
            for _ in range(left[i]):
                turn += 1
                heappush(waiting[0], (i if first else turn, i, rho * profile.parameters[i] / left[i]))
    return begins[-1] - begins[-2]


def rank(name: str, rho: str, total_ms: str, steps: str) -> None:
    total, profile = float(total_ms) / 1e3, PROFILES[name]
    with hocket.init() as comm:
        n = calibrated(comm, total * float(rho))
        counts = [max(1, int(share * n)) for share in profile.parameters]
        grads = {f"{i:02}": np.ones(count, np.float32) for i, count in enumerate(counts)}
        found = {}
        ways: dict[str, dict[str, Any]] = {"FIFO": {"order": "fifo", "slice": None, "fuse": 0}, "P3": {}}
        for what, settings in ways.items():
            found[what] = median(iterations(comm, settings, grads, profile, total, int(steps))[SKIP:]) / total
        tell(comm, found)


def iterations(
    comm: Any, settings: dict[str, Any], grads: dict[str, Any], profile: Profile, total: float, steps: int
) -> list[float]:
    """Seconds of each step but the last; with FIFO the forward pass waits for all averages."""
    s = Scheduler(comm, finite=False, **settings)
    for name, grad in grads.items():
        s.declare(name, grad)
    s.seal()
    comm.barrier()
    times = [_iterate(s, grads, profile, total, i, settings.get("order") == "fifo") for i in range(steps)]
    for name in grads:
        s.wait(name)
    s.close()
    return np.diff(times).tolist()


def _iterate(s: Scheduler, grads: dict[str, Any], profile: Profile, total: float, i: int, barrier: bool) -> float:
    """When its forward pass began."""
    began = 0.0
    for name in grads if barrier and i else ():
        s.wait(name)
    for name, share in zip(grads, profile.operations, strict=True):
        if not barrier and i:
            s.wait(name)
        began = began or time.perf_counter()
        time.sleep(share * total / 3)
    for name, share in reversed(list(zip(grads, profile.operations, strict=True))):
        time.sleep(share * total * 2 / 3)
        s.ready(name, grads[name])
    s.step()
    return began


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(MODULE, __doc__, argv, rates="100mbit", quick=False)
    heading(["model", "rho", "cable", "FIFO", "its model", "P3", "its model", "gain"])
    for rate in given.rates.split(","):
        for name, rho in CASES[:1] if given.quick else CASES:
            found = on_a_cable(MODULE, rate, [name, rho, 60 if given.quick else 600, 5 if given.quick else 9])
            fifo, p3 = (model(PROFILES[name], rho, first) for first in (False, True))
            cells = [f"{x:.2f}" for x in (found["FIFO"], fifo, found["P3"], p3, found["FIFO"] / found["P3"])]
            print(f"| {name} | {rho} | {rate} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
