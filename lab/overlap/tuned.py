"""Slices, credit and fusing on a real cable: what `hocket.training.tune` finds, beside today's defaults and each alone.

    python -m hocket.lab.overlap.tuned [--rates 1gbit] [--steps 15]          as root (system/namespaces/hosts.py)

A model of 10 MB, cut as VGG-19's layers, whose computation is sleep and takes about as long as its communication; each
layer's forward pass waits for its own average.  `tune` tries some settings, by scikit-learn's model and at random; then
the best and the others run in turns.  Columns: a step in ms, median and 90th percentile, and beside the default's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import main_or_rank
from hocket.lab.overlap.profiles import PROFILES, iterations
from hocket.lab.program import arguments, heading, on_a_cable, tell
from hocket.training import Setting, tune
from hocket.training.overlap.tuning import SEARCHES

MODULE = "hocket.lab.overlap.tuned"
NBYTES, STEP_MS = 10 << 20, {"1gbit": 90, "100mbit": 900}
"""Bytes of the model, and milliseconds of its computation, about those that its bytes take."""
SPACE = [
    Setting(lanes, slice << 10, fuse << 10, credit)
    for lanes, slice, fuse, credit in itertools.product((2, 4, 8), (256, 512, 1024, 2048), (0, 64, 256), (1, 2, 4))
]
ROUNDS, SKIP, EACH = 5, 1, 6
"""Turns of all rows, and in each the steps that are not counted, and all."""


def rank(nbytes: str, milliseconds: str, tries: str, rounds: str) -> None:
    total, profile, n = float(milliseconds) / 1e3, PROFILES["VGG-19"], int(nbytes) // 4
    grads = {f"{i:02}": np.ones(max(1, int(share * n)), np.float32) for i, share in enumerate(profile.parameters)}
    with hocket.init() as comm:

        def measured(**settings: Any) -> list[float]:
            return iterations(comm, settings, grads, profile, total, EACH)[SKIP:]

        def median(setting: Setting) -> float:
            return float(np.median(measured(**setting._asdict())))

        best = {
            search: tune(comm, median, job=search, search=search, steps=int(tries), space=SPACE).setting
            for search in SEARCHES
        }
        tuned = best["gaussian"]._asdict()
        rows: dict[str, dict[str, Any]] = {
            "default": {}, "FIFO": {"order": "fifo", "slice": None, "fuse": 0},
            "slices only": {"order": "fifo", "slice": tuned["slice"], "fuse": 0},
            "priority only": {"slice": None, "fuse": 0},
            "tuned": tuned, "tuned, credit 1": {**tuned, "credit": 1}, "tuned, no fusing": {**tuned, "fuse": 0},
            "found at random": best["random"]._asdict(),
        }  # fmt: skip
        found: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(int(rounds)):
            for name, settings in rows.items():
                found[name] += measured(**settings)
        tell(comm, {name: [str(rows[name]), *np.percentile(each, [50, 90]).tolist()] for name, each in found.items()})


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(MODULE, __doc__, argv, rates="1gbit", quick=False, steps=15)
    heading(["cable", "way", "settings", "ms", "p90", "of the default's"])
    for rate in given.rates.split(","):
        small = [NBYTES // 10, 9, 2, 1]
        found = on_a_cable(MODULE, rate, small if given.quick else [NBYTES, STEP_MS[rate], given.steps, ROUNDS])
        for name, (settings, middle, late) in found.items():
            ratio = middle / found["default"][1]
            print(f"| {rate} | {name} | {settings} | {middle * 1e3:.1f} | {late * 1e3:.1f} | {ratio:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
