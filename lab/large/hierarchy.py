"""A sum over two hosts: rings that know no hosts, a hierarchical allreduce, and the axes of a mesh; and `Sharded`.

    python -m hocket.lab.large.hierarchy [--rate 100mbit] [--bytes 4M] [--ranks 4] [--rounds 5]       as root

So many ranks on each of two hosts (network namespaces) with a slow cable between them.  A ring whose ranks are in the
order of hosts crosses the cable twice, one whose neighbours are on different hosts in every step.  Law, bytes that a
host puts on the cable, for p ranks on each: (2 - 1/p) n, p (2 - 1/p) n, and n for the next two.  `Sharded` averages and
steps: over all ranks, whose sums in the order of ranks send each piece straight to its owner, (p / 2) n, and n / 2 for
the parameters; with shards inside hosts n, for the gradients alone.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.hosts import sent
from hocket.training import SGD, Mesh, Sharded

MODULE = "hocket.lab.large.hierarchy"
PATIENCE = 500.0
ROWS = (
    "ring, in the order of hosts", "ring, hosts interleaved", "hierarchical", "mesh, an axis inside hosts",
    "Sharded, over all ranks", "Sharded, shards inside hosts",
)  # fmt: skip
WANTED = {"hierarchical": (1.6, 6.0), "mesh, an axis inside hosts": (1.6, 6.0)}
"""Wanted: so many times as fast as the two rings."""


def law(what: str, each: int) -> float:
    """Bytes of a host, in n."""
    ring = 2 - 1 / each
    return {ROWS[0]: ring, ROWS[1]: each * ring, ROWS[4]: (each + 1) / 2}.get(what, 1.0)


def rank(nbytes: str, rounds: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding."""
    with hocket.init() as comm:
        each = comm.local_size
        turned: Any = comm.split(0, comm.local_rank * 2 + comm.host)
        mesh = Mesh(comm, {"data": 2, "tensor": each})
        x = np.ones(int(nbytes) // 4, np.float32)

        def by_axes() -> None:
            part = mesh["tensor"].reduce_scatter(x)
            mesh["tensor"].allgather(mesh["data"].allreduce(part), out=x)

        flat = Sharded(SGD(0.5), comm, {"x": np.zeros_like(x)})
        two = Sharded(SGD(0.5), mesh.along("data", "tensor"), {"x": np.zeros_like(x)}, shards="tensor")
        ways: dict[str, Callable[[], object]] = {
            ROWS[0]: lambda: comm.allreduce(x, algorithm="ring"),
            ROWS[1]: lambda: turned.allreduce(x, algorithm="ring"),
            ROWS[2]: lambda: comm.allreduce(x, algorithm="hierarchical"),
            ROWS[3]: by_axes,
            ROWS[4]: lambda: flat.step({"x": x}),
            ROWS[5]: lambda: two.step({"x": x}),
        }
        for what, call in ways.items():
            row = _measured(comm, x, what, call, int(rounds))
            if comm.rank == 0:
                print(json.dumps({"what": what, "law": law(what, each), **row}), flush=True)


def _measured(comm: Any, x: Any, what: str, call: Callable[[], object], rounds: int) -> dict[str, float]:
    call()
    seconds, nbytes = [], []
    for _ in range(rounds):
        x[...] = 1
        comm.barrier()
        before = sent()
        comm.barrier()
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
        comm.barrier()
        nbytes.append(sent() - before)
        assert (x == (1 if what.startswith("Sharded") else comm.size)).all()
    slowest = float(comm.allreduce(median(seconds), "max"))
    return {"seconds": slowest, "bytes": median(nbytes) / x.nbytes}


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(MODULE, __doc__, argv, rate="100mbit", bytes=4 << 20, ranks=4, rounds=5)
    heading([
        "allreduce", "bytes of a host, in n", "law", "ms", "times as fast as the ordered ring",
        "as the interleaved one", "wanted",
    ])  # fmt: skip
    with cabled(options.rate) as names:
        rows = found_on(names, options.ranks, again(MODULE, options.bytes, options.rounds), "hierarchy", PATIENCE)
    for row in rows:
        faster = [other["seconds"] / row["seconds"] for other in rows[:2]]
        wanted = ", ".join(f">= {each:g}" for each in WANTED.get(row["what"], ()))
        print(
            f"| {row['what']} | {row['bytes']:.3f} | {row['law']:.3f} | {row['seconds'] * 1e3:.1f} | {faster[0]:.2f} "
            f"| {faster[1]:.2f} | {wanted} |", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
