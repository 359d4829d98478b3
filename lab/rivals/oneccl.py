"""Intel's oneCCL on CPUs beside hocket: allreduce of float32 in shared memory, in blocks in turns.

    python -m venv build/oneccl && build/oneccl/bin/pip install oneccl-devel          600 MB
    python -m hocket.lab.rivals.oneccl [--place build/oneccl] [-n 2] [--blocks 5] [--calls 200] [--bytes 8,1024,...]

oneCCL's ranks are a C++ program (oneccl.cpp), started by the mpiexec that comes with it, over its MPI; hocket's are
Python's.  Both call the barrier, then an allreduce into another array under the stopwatch.  A line has the medians of
the blocks' medians, and of their p90.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, found_here, main_or_rank
from hocket.errors import ArgumentError
from hocket.lab.program import arguments, heading

MODULE = "hocket.lab.rivals.oneccl"
SIZES = "8,1024,65536,1048576,16777216,67108864"
PATIENCE = 300.0
WARM = 5


def rank(calls: str, *sizes: str) -> None:
    with hocket.init() as comm:
        for nbytes in map(int, sizes):
            x, out = np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
            took = []
            for _ in range(WARM + int(calls)):
                comm.barrier()
                begun = time.perf_counter()
                comm.allreduce(x, out=out)
                took.append(1e6 * (time.perf_counter() - begun))
            took = sorted(took[WARM:])
            if comm.rank == 0:
                print(json.dumps({"bytes": nbytes, "us": took[len(took) // 2], "p90": took[len(took) * 9 // 10]}))


def compiled(place: Path, folder: str) -> str:
    source, program = Path(__file__).with_suffix(".cpp"), f"{folder}/oneccl"
    if not (place / "include" / "oneapi" / "ccl.hpp").exists():
        raise ArgumentError(f"oneCCL is not in {place}: pip install oneccl-devel, in an environment there")
    lib = place.absolute() / "lib"
    words = ["g++", "-O2", "-std=c++17", str(source), "-o", program, f"-I{place}/include", f"-L{lib}", "-lccl"]
    subprocess.run([*words, f"-Wl,-rpath,{lib}", "-Wl,--allow-shlib-undefined"], check=True)
    return program


def theirs(place: Path, program: str, ranks: int, words: Sequence[str]) -> list[dict[str, Any]]:
    path = f"{place.absolute()}/lib:{place.absolute()}/lib/mpi"
    env = {**os.environ, "LD_LIBRARY_PATH": path, "CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error"}
    with tempfile.TemporaryDirectory(prefix="hocket-oneccl-") as meet:
        command = [f"{place}/bin/mpiexec", "-n", str(ranks), program, meet, *words]
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def main(argv: Sequence[str] | None = None) -> int:
    o = arguments(MODULE, __doc__, argv, place="build/oneccl", n=2, blocks=5, calls=200, bytes=SIZES)
    words = [str(o.calls), *o.bytes.split(",")]
    with tempfile.TemporaryDirectory(prefix="hocket-oneccl-") as folder:
        program, place = compiled(Path(o.place), folder), Path(o.place)
        ours, others = [], []
        for _ in range(o.blocks):
            ours.append(found_here(again(MODULE, *words), o.n, "oneccl", PATIENCE))
            others.append(theirs(place, program, o.n, words))
    heading(("bytes", "hocket: us", "p90", "oneCCL: us", "p90", "hocket / oneCCL"))
    for i, nbytes in enumerate(words[1:]):
        a, b, c, d = (
            statistics.median(block[i][key] for block in each) for each in (ours, others) for key in ("us", "p90")
        )
        print(f"| {nbytes} | {a:.1f} | {b:.1f} | {c:.1f} | {d:.1f} | {a / c:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
