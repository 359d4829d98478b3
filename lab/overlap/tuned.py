"""Does the search of `hocket.training.tune` find the best slices in 15 steps?  On the event model, in seconds.

    python -m hocket.lab.overlap.tuned [--seeds 20]

VGG-19's layers as in lab/overlap/profiles.py, communication = computation, the first layer's slices first.  The cable
ends a slice that it has begun, and each slice costs 5e-4 of the computation more: few slices hold up the first layer,
many cost time.  Settings are numbers of slices, 1 to 400.  Columns: the worst of all seeds over the grid's best.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import sys
from collections.abc import Sequence
from statistics import median

from hocket.lab.overlap.profiles import PROFILES, Profile
from hocket.lab.overlap.shaped import heading
from hocket.training.overlap.tuning import SEARCHES, Setting, searched

OVERHEAD = 5e-4
BYTES = 575 << 20
"""Bytes of VGG-19's gradients."""
STEPS = 15
COUNTS = sorted({round(400 ** (i / 79)) for i in range(80)})
SPACE = [Setting(4, BYTES // count, 0) for count in COUNTS]


def iteration(profile: Profile, rho: float, slices: int, overhead: float = OVERHEAD, iterations: int = 6) -> float:
    """The time of one, computation = 1, where all gradients together are about so many slices."""
    size, layers = rho / slices, range(len(profile.parameters))
    forward, backward = ([share * o for o in profile.operations] for share in (1 / 3, 2 / 3))
    counts = [max(1, math.ceil(rho * share / size - 1e-9)) for share in profile.parameters]
    one = [rho * share / count + overhead for share, count in zip(profile.parameters, counts, strict=True)]
    left = dict.fromkeys(layers, 0)
    clock, free, begins = 0.0, 0.0, []

    def work(until: float) -> None:
        """Begin slices until this moment."""
        nonlocal free
        while any(left.values()) and free < until:
            layer = next(i for i in layers if left[i])
            free, left[layer] = free + one[layer], left[layer] - 1

    for _ in range(iterations):
        for i in layers:
            while left[i]:
                work(free + 1e-12)
                clock = max(clock, free)
            begins += [clock] if i == 0 else []
            clock += forward[i]
            work(clock)
        for i in reversed(layers):
            clock += backward[i]
            work(clock)
            left[i], free = counts[i], max(free, clock)
    return begins[-1] - begins[-2]


@functools.cache
def cost(setting: Setting) -> float:
    return iteration(PROFILES["VGG-19"], 1.0, round(BYTES / setting.slice))


def found_by(search: str, seed: int, steps: int = STEPS) -> float:
    """The best that a search finds."""
    dice = random.Random(seed)
    tried = searched(cost, lambda tried: SEARCHES[search](SPACE, tried, dice), steps)
    return min(seconds for _, seconds in tried)


def main(argv: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="python -m hocket.lab.overlap.tuned", description=__doc__, allow_abbrev=False)
    made.add_argument("--seeds", type=int, default=20, help="of the searches (20)")
    seeds = range(made.parse_args(argv).seeds)
    best = min(map(cost, SPACE))
    heading(["search", "steps", "median", "worst", "the grid's best", "worst over it", "one slice", "400 slices"])
    for search in SEARCHES:
        found = [found_by(search, seed) for seed in seeds]
        cells = [median(found), max(found), best]
        ends = [f"{cost(end):.3f}" for end in (SPACE[0], SPACE[-1])]
        row = [f"{each:.3f}" for each in cells] + [f"{max(found) / best - 1:.1%}", *ends]
        print(f"| {search} | {STEPS} | {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
