"""Equal bits: which library gives them, and when?  One sum of 12 vectors, dealt to ranks and cut in several ways.

    python -m hocket.lab.rivals.bits                        a table, of what of Open MPI, MPICH, Gloo and hocket is here

Columns: do all ranks hold the same bits; does a second run; does an element that is summed alone, or in a shorter
vector; do 1, 2, 3, 4, 6 and 12 ranks that have the same addends (a rank adds its own by NumPy first, hocket's
order="exact" takes them as rows); do addends that swap ranks.  float32 of a normal distribution, 40,000 elements.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hocket.bench.rivals.launchers import mpirun

Array = np.ndarray[Any, Any]
Sum = Callable[[Array], Array]
ALL, LENGTH = 12, 40_000
SIZES = (1, 2, 3, 4, 6, 12)


def addends() -> Array:
    return np.random.default_rng(0).normal(size=(ALL, LENGTH)).astype(np.float32)


def digest(x: Array) -> str:
    return hashlib.sha256(x.tobytes()).hexdigest()[:16]


def facts(rank: int, size: int, add: Sum, rows: bool) -> dict[str, str]:
    """Digests of one rank's results.  `rows`: `add` takes the rank's rows; else their sum."""
    x, k = addends(), ALL // size

    def own(part: Array) -> Array:
        return part if rows else np.add.reduce(part, 0)

    mine, swapped = x[rank * k : (rank + 1) * k], x[::-1][rank * k : (rank + 1) * k]
    whole = add(own(mine))
    parts = np.concatenate([add(own(mine[:, a:b])) for a, b in ((0, 1), (1, 1000), (1000, LENGTH))])
    return {"whole": digest(whole), "parts": digest(parts), "swapped": digest(add(own(swapped)))}


def by_mpi() -> tuple[int, int, Sum]:
    from mpi4py import MPI

    def add(x: Array) -> Array:
        out = np.empty_like(x)
        MPI.COMM_WORLD.Allreduce(np.ascontiguousarray(x), out)
        return out

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, add


def by_gloo() -> tuple[int, int, Sum]:
    import torch

    distributed: Any = torch.distributed
    distributed.init_process_group("gloo")

    def add(x: Array) -> Array:
        out = torch.tensor(x)
        distributed.all_reduce(out)
        found: Array = out.numpy()
        return found

    return int(distributed.get_rank()), int(distributed.get_world_size()), add


def by_hocket(order: str) -> tuple[int, int, Sum]:
    import hocket

    comm = hocket.init()

    def add(x: Array) -> Array:
        given = np.array(x)
        found: Array = comm.allreduce(given, order=order, axis=0 if order == "exact" else None)
        return found

    return comm.rank, comm.size, add


def worker(who: str) -> None:
    rank, size, add = by_mpi() if who == "mpi" else by_gloo() if who == "gloo" else by_hocket(who)
    print("FACTS " + json.dumps([rank, facts(rank, size, add, who == "exact")]), flush=True)


def run(who: str, size: int, mpi: str = "") -> list[dict[str, str]]:
    """Each rank's facts."""
    program = [sys.executable, "-m", "hocket.lab.rivals.bits", who]
    env = dict(os.environ)
    if mpi:
        command, more = mpirun(mpi, size)
        command, env = [*command, *program], {**env, **more}
    elif who == "gloo":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
        command += program[1:]
    else:
        command = [sys.executable, "-m", "hocket", "run", "-n", str(size), "--", *program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    lines = [line.split("FACTS ")[1] for line in done.stdout.splitlines() if "FACTS " in line]
    if len(lines) != size:
        raise RuntimeError(done.stderr[-500:])
    return [found for _, found in sorted(json.loads(line) for line in lines)]


def row(name: str, who: str, mpi: str = "") -> str:
    every = {size: run(who, size, mpi) for size in SIZES}
    again = run(who, 6, mpi)
    answers = (
        all(len({each["whole"] for each in found}) == 1 for found in every.values()),
        [each["whole"] for each in again] == [each["whole"] for each in every[6]],
        all(found[0]["whole"] == found[0]["parts"] for found in every.values()),
        len({found[0]["whole"] for found in every.values()}) == 1,
        all(found[0]["whole"] == found[0]["swapped"] for found in every.values()),
    )
    return "| " + " | ".join([name, *("yes" if each else "no" for each in answers)]) + " |"


def main() -> None:
    print("| float32 sum | all ranks | next run | any length | any number of ranks | any order of ranks |")
    print("|---|---|---|---|---|---|")
    for name, who, mpi in (
        ("Open MPI", "mpi", "openmpi"), ("MPICH", "mpi", "mpich"), ("Gloo, torch.distributed", "gloo", ""),
        ("hocket", "any", ""), ('hocket, order="rank"', "rank", ""), ('hocket, order="exact"', "exact", ""),
    ):  # fmt: skip
        try:
            print(row(name, who, mpi), flush=True)
        except Exception as why:
            print(f"{name}: {type(why).__name__} {str(why)[-300:]}", file=sys.stderr)


if __name__ == "__main__":
    worker(sys.argv[1]) if len(sys.argv) > 1 else main()
