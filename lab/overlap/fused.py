"""The savings of sending small gradients together, where each message takes a millisecond longer.

    python -m hocket.lab.overlap.fused [-n 4]

160 gradients of ResNet-50-like shapes, 4 MB in all, made ready one after the other, by hocket.training.Scheduler on one
lane.  "delayed": Unix datagrams in Python that arrive 1 ms later (lab/overlap/delayed.py), and shared memory, where
there is no delay.  Medians of the slowest rank.  (160 rings of 4 ranks would take 0.96 s; small vectors go shorter.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import main_or_rank
from hocket.lab.overlap.delayed import declared
from hocket.lab.program import PATIENCE, arguments, heading, tell
from hocket.training import Scheduler

MODULE = "hocket.lab.overlap.fused"
TENSORS, BYTES = 160, 4_000_000
SHARES = [1, 9, 4, 1, 1, 2, 16, 1]
"""Shares of the bytes, again and again: batch norms and biases, and convolutions of several sizes."""
WAYS = {"unfused": 0, "fused": 1 << 20}


def sizes(tensors: int, nbytes: int) -> list[int]:
    """Floats of each."""
    shares = [SHARES[i % len(SHARES)] for i in range(tensors)]
    return [max(1, nbytes // 4 * share // sum(shares)) for share in shares]


def rank(tensors: str, rounds: str) -> None:
    with hocket.init() as comm:
        counts = sizes(int(tensors), BYTES * int(tensors) // TENSORS)
        found: dict[str, Any] = {}
        bits = {}
        for way, fuse in WAYS.items():
            grads = {f"{i:03}": np.full(n, comm.rank + 0.1, np.float32) for i, n in enumerate(counts)}
            s = Scheduler(comm, order="fifo", slice=None, fuse=fuse, finite=False)
            for name, grad in grads.items():
                s.declare(name, grad)
            s.seal()
            times = [_step(comm, s, grads) for _ in range(int(rounds))]
            bits[way] = b"".join(grads[name].tobytes() for name in grads)
            found[way] = float(comm.allreduce(np.array([median(times[1:])]), "max")[0])
        tell(comm, {**found, "same bits": bits["fused"] == bits["unfused"]})


def _step(comm: Any, s: Scheduler, grads: dict[str, Any]) -> float:
    comm.barrier()
    began = time.perf_counter()
    for grad in grads.values():
        grad[:] = comm.rank + 0.1
    for name in reversed(grads):
        s.ready(name, grads[name])
    s.step()
    for name in grads:
        s.wait(name)
    return time.perf_counter() - began


def measured(size: int, transport: str, path: str, tensors: int, rounds: int) -> dict[str, Any]:
    """The numbers that rank 0 found."""
    paths = os.pathsep.join([path, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": paths, "HOCKET_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "hocket", "run", "-n", str(size), "--no-prefix", "--"]
    command = [*launcher, sys.executable, "-m", MODULE, "rank", str(tensors), str(rounds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise SystemExit(f"a rank failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(MODULE, __doc__, argv, n=4, quick=False)
    heading(["transport", "unfused", "fused", "x faster", "the same bits"])
    with declared() as path:
        for transport in ("delayed", "shm"):
            found = measured(given.n, transport, path, TENSORS // (8 if given.quick else 1), 3 if given.quick else 7)
            cells = [f"{1e3 * found[way]:.1f} ms" for way in WAYS] + [f"{found['unfused'] / found['fused']:.1f}"]
            print(f"| {transport} | {' | '.join(cells)} | {'yes' if found['same bits'] else 'no'} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
