"""Two ranks of one host publish, two of another fetch all of it: what crosses the cable, and how long it takes.

    python -m hocket.lab.large.fetches [--rate 1gbit] [--mb 48]       as root

alone: each reader by itself.  together: `comm=`.  float16, lossless: together, with dtype= and codec= (weights are
normal numbers).  Bytes are the kernel's, in the model's; times are medians of the slowest reader, over the cable's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket import Layout
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.hosts import CABLE, V4, sent

MODULE = "hocket.lab.large.fetches"
PATIENCE, ROUNDS, EACH, SECRET = 300.0, 5, 2, "of this measurement"
WAYS: dict[str, dict[str, Any]] = {
    "alone": {}, "together": {}, "float16": {"dtype": "float16"}, "lossless": {"codec": "lossless"}
}  # fmt: skip


def rank(mb: str) -> None:
    """Publish, or read; rank 2 has the findings, which rank 0 prints."""
    world = hocket.init()
    reads = world.rank >= EACH
    group: Any = world.split(int(reads))
    shape = (int(float(mb) * 250_000) // 1024, 1024)
    published: Any = None
    if not reads:
        x = np.random.default_rng(group.rank).standard_normal((shape[0] // EACH, shape[1])).astype(np.float32)
        layout = Layout.cut((shape[0] // EACH * EACH, shape[1]), EACH)
        published = hocket.publish(group, {"w": [x]}, {"w": layout}, secret=SECRET, iface=V4[0])
    address = world.broadcast_object(published.address if world.rank == 0 else None)
    whole = {"w": Layout.replicated((shape[0] // EACH * EACH, shape[1]), EACH)}
    for name, how in WAYS.items():
        found = _read(world, group, address, whole, name, how) if reads else _stand(world)
        if world.rank == 0:
            print(json.dumps({"way": name, **found}), flush=True)
    if published is not None:
        published.close()
    world.barrier()


def _read(world: Any, group: Any, address: str, whole: Any, name: str, how: dict[str, Any]) -> dict[str, Any]:
    who = {"rank": group.rank} if name == "alone" else {"comm": group}
    with hocket.Reader(address, whole, secret=SECRET, iface=V4[1], **who, **how) as reader:
        reader.fetch()
        for _ in range(ROUNDS):
            world.barrier()
            began = time.perf_counter()
            reader.fetch()
            took = np.array([time.perf_counter() - began])
            world.allreduce(took, "max")
            world.barrier()
    return {}


def _stand(world: Any) -> dict[str, Any]:
    """The publisher's ranks, while others read."""
    seconds, crossed = [], []
    for _ in range(ROUNDS):
        before = sent()
        world.barrier()
        seconds.append(float(world.allreduce(np.zeros(1), "max")[0]))
        crossed.append(sent() - before)
        world.barrier()
    return {"seconds": median(seconds), "crossed": median(crossed)}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = arguments(MODULE, __doc__, argv, mb=48.0, rate="1gbit")
    with cabled(options.rate) as names:
        found = found_on(names, EACH, again(MODULE, options.mb), MODULE, PATIENCE, HOCKET_IFACE=CABLE)
    bits = {"gbit": 1e9, "mbit": 1e6}[options.rate[-4:]] * float(options.rate[:-4])
    nbytes = int(options.mb * 250_000) // 1024 // EACH * EACH * 4096
    heading(("way", "cable, MB", "over the model's", "ms", "over the cable's time"))
    for row in found:
        crossed, seconds = row["crossed"], row["seconds"]
        print(f"| {row['way']} | {crossed / 1e6:.2f} | {crossed / nbytes:.3f} | {seconds * 1e3:.1f} "
              f"| {seconds * bits / 8 / nbytes:.2f} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
