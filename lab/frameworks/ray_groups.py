"""hocket beside Gloo as groups of ray.util.collective: allreduce of float32 in two actors.

    python -m hocket.lab.frameworks.ray_groups

Both groups are of the same two actors, and take turns (A B A B ...); in each block the slower actor's mean time of a
call counts, and the table has the medians over the blocks.  Arrays are NumPy's, and what is measured is
`ray.util.collective.allreduce`, with what Ray itself does in it.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from hocket.arguments import human
from hocket.system.cores import processor

CALLS = ((8, 2000, 100), (1 << 20, 100, 20), (64 << 20, 3, 2))
"""Bytes, calls in a block with hocket, and with Gloo."""
BLOCKS = 9
GROUPS = {"hocket": "on hocket", "gloo": "default"}
"""The group of each backend: its group.  Gloo's first group in a process has to be the one called "default"."""


class Actor:
    """One of the two."""

    def __init__(self, rank: int) -> None:
        from ray.util import collective

        import hocket.ray

        hocket.ray.register()
        for backend in ("gloo", "hocket"):
            collective.init_collective_group(2, rank, backend, GROUPS[backend])

    def block(self, backend: str, nbytes: int, calls: int) -> float:
        """Seconds for each call.  The first is not counted."""
        import numpy as np
        from ray.util import collective

        x = np.ones(nbytes // 4, np.float32)
        collective.allreduce(x, GROUPS[backend])
        x[:] = 1
        collective.barrier(GROUPS[backend])
        start = time.perf_counter()
        for _ in range(calls):
            collective.allreduce(x, GROUPS[backend])
        return (time.perf_counter() - start) / calls


def measured(actors: Any, get: Any, nbytes: int, calls: dict[str, int]) -> dict[str, float]:
    """Medians, in seconds."""
    found: dict[str, list[float]] = {backend: [] for backend in GROUPS}
    for _ in range(BLOCKS):
        for backend in GROUPS:
            blocks = [actor.block.remote(backend, nbytes, calls[backend]) for actor in actors]
            found[backend].append(max(get(blocks)))
    return {backend: statistics.median(times) for backend, times in found.items()}


def main() -> None:
    import ray

    env = {"env_vars": {"OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=env)
    actors = [ray.remote(Actor).options(num_cpus=1).remote(rank) for rank in range(2)]
    print(processor())
    print("\n| allreduce, two actors | hocket us | gloo us | x faster |\n|---|---|---|---|")
    for nbytes, ours, theirs in CALLS:
        times = measured(actors, ray.get, nbytes, {"hocket": ours, "gloo": theirs})
        print(
            f"| {human(nbytes)} | {times['hocket'] * 1e6:.1f} | {times['gloo'] * 1e6:.1f} | "
            f"{times['gloo'] / times['hocket']:.1f} |", flush=True
        )  # fmt: skip
    ray.shutdown()


if __name__ == "__main__":
    main()
