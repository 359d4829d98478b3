"""Embeddings by servers and the rest by allreduce, beside an allreduce of everything: four hosts at a slow switch.

    python -m hocket.lab.server.mixed [--rate 100mbit] [--rows 1000000] [--touched 256] [--dense 262144]   as root

An embedding of so many rows of 16 floats, some of which each rank touches in a step, and a vector of dense parameters.
Rows: all dense (an allreduce of the embedding's gradient, too); rows by servers, then the dense allreduce; both at
once; and both at once behind the computation: the next batch's rows are pulled, and the dense gradient is averaged,
while the next step computes (a sleep).  Every rank serves a part of the rows.  After the same steps all rows have the
same weights: `apart` is the largest difference to a computation on one rank.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, found_on, hosts_may_come, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.hosts import sent
from hocket.system.namespaces.switch import switch
from hocket.training import Client, Rows, serve

MODULE = "hocket.lab.server.mixed"
HOSTS, WIDTH, PATIENCE = 4, 16, 900.0
RATE = 0.1
"""The rate of learning."""
ALL_DENSE, SERIAL, AT_ONCE, HIDDEN = (
    "all dense", "rows by servers, then dense", "both at once", "both behind the computation",
)  # fmt: skip


class Sizes(NamedTuple):
    rows: int
    touched: int
    dense: int
    steps: int
    compute: float
    """Seconds of a step in the last row; in the others there is no computation."""


class Batches:
    """Which rows a rank touches in each step, and the gradient of a row and of the dense parameters: they pull both to
    a target, so that each step depends on the one before."""

    def __init__(self, sizes: Sizes, rank: int) -> None:
        self._sizes, self._dice = sizes, np.random.default_rng(rank)
        self.keys = [self._dice.choice(sizes.rows, sizes.touched, replace=False) for _ in range(sizes.steps + 1)]

    def gradient(self, values: Any, step: int) -> Any:
        return values - np.float32(1 + step % 3)


def table(sizes: Sizes) -> Rows:
    return Rows(WIDTH, rows=sizes.rows, scale=0.1)


def all_dense(comm: Any, sizes: Sizes, batches: Batches) -> tuple[Any, Any]:
    """The embedding is on all ranks, and its gradient is mostly zeros."""
    rows = table(sizes).began(np.arange(sizes.rows))
    dense, gradients = np.zeros(sizes.dense, np.float32), np.zeros_like(rows)
    for step in range(sizes.steps):
        keys = batches.keys[step]
        gradients[:] = 0
        gradients[keys] = batches.gradient(rows[keys], step)
        rows -= RATE * comm.allreduce(gradients, op="avg")
        dense -= RATE * comm.allreduce(batches.gradient(dense, step), op="avg")
    return rows, dense


def served(comm: Any, client: Client, sizes: Sizes, batches: Batches, what: str) -> tuple[Any, Any]:
    """`what`: SERIAL, AT_ONCE or HIDDEN."""
    dense = np.zeros(sizes.dense, np.float32)
    coming = client.pull("rows", rows=batches.keys[0], async_op=True)
    average = None
    for step in range(sizes.steps):
        if what == HIDDEN:
            time.sleep(sizes.compute)
        rows = coming.wait()
        if average is not None:
            dense -= RATE * average.result()
        pushed = batches.gradient(rows, step) * np.float32(-RATE / comm.size)
        gradient = batches.gradient(dense, step)
        if what == SERIAL:
            client.push("rows", pushed, rows=batches.keys[step])
            dense -= RATE * comm.allreduce(gradient, op="avg")
            client.tick()
            coming = client.pull("rows", rows=batches.keys[step + 1], async_op=True)
            continue
        push = client.push("rows", pushed, rows=batches.keys[step], async_op=True)
        client.tick()
        coming = client.pull("rows", rows=batches.keys[step + 1], async_op=True)
        average = comm.allreduce(gradient, op="avg", async_op=True)
        if what == AT_ONCE:
            dense -= RATE * average.result()
            average = None
        push.wait()
    rows = coming.wait()
    return rows, dense if average is None else dense - RATE * average.result()


def rank(*said: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each row."""
    rows, touched, dense, steps = map(int, said[:4])
    sizes = Sizes(rows, touched, dense, steps, float(said[4]))
    with hocket.init() as comm:
        batches = Batches(sizes, comm.rank)
        fewer = sizes._replace(steps=min(sizes.steps, 2))
        _tell(comm, ALL_DENSE, fewer, lambda: all_dense(comm, fewer, batches))
        for what in (SERIAL, AT_ONCE, HIDDEN):
            tables, everyone = {"rows": table(sizes)}, range(comm.size)
            with serve(comm, tables, on=everyone, works=True) as server, Client(server) as client:
                _tell(comm, what, sizes, lambda: served(comm, client, sizes, batches, what))  # noqa: B023


def on_one_rank(sizes: Sizes, ranks: int) -> tuple[Any, Any]:
    """The values that all rows must come to."""
    rows, dense = table(sizes).began(np.arange(sizes.rows)), np.zeros(sizes.dense, np.float32)
    everyone = [Batches(sizes, rank) for rank in range(ranks)]
    for step in range(sizes.steps):
        now = [(each.keys[step], each.gradient(rows[each.keys[step]], step)) for each in everyone]
        for keys, gradient in now:
            rows[keys] -= np.float32(RATE / ranks) * gradient
        dense -= np.float32(RATE) * everyone[0].gradient(dense, step)
    return rows, dense


def _tell(comm: Any, what: str, sizes: Sizes, run: Callable[[], tuple[Any, Any]]) -> None:
    """`run` returns this rank's rows of the keys that it touches after the last step, or all; and the dense vector."""
    comm.barrier()
    before, began = sent(), time.perf_counter()
    rows, dense = run()
    comm.barrier()
    seconds, nbytes = time.perf_counter() - began, sent() - before
    wanted, wanted_dense = on_one_rank(sizes, comm.size)
    if len(rows) != sizes.rows:
        wanted = wanted[Batches(sizes, comm.rank).keys[sizes.steps]]
    apart = max(float(np.abs(rows - wanted).max()), float(np.abs(dense - wanted_dense).max()))
    apart = max(comm.share(apart))
    if comm.rank == 0:
        row = {"what": what, "seconds": seconds / sizes.steps, "bytes": nbytes / sizes.steps, "apart": apart}
        print(json.dumps(row), flush=True)


def asked(names: Sequence[str], sizes: Sizes) -> list[dict[str, Any]]:
    """The numbers that rank 0 found, with a rank on each of these hosts."""
    return found_on(names, 1, again(MODULE, *sizes), "mixed", PATIENCE)


def report(rows: Sequence[dict[str, Any]], sizes: Sizes) -> list[str]:
    """The table, and beside the last row what it should be: the longer of computation and communication."""
    by = {row["what"]: row for row in rows}
    first, hidden = by[ALL_DENSE], max(sizes.compute, by[AT_ONCE]["seconds"])
    lines = []
    for row in rows:
        wanted = f"{row['seconds'] / hidden:.2f} of {hidden:.3f} s" if row["what"] == HIDDEN else ""
        lines.append(
            f"| {row['what']} | {row['bytes'] / 1e6:.2f} | {first['bytes'] / row['bytes']:.1f} | {row['seconds']:.3f} "
            f"| {first['seconds'] / row['seconds']:.1f} | {row['apart']:.0e} | {wanted} |"
        )
    return lines


COLUMNS = (
    "", "MB of a host a step", "times as few", "s a step", "times as fast", "apart", "max(compute, both at once)",
)  # fmt: skip


def main() -> int:
    o = arguments(
        MODULE, __doc__, None, rate="100mbit", rows=1_000_000, touched=256, dense=262_144, steps=10, compute=0.15,
        quick=False,
    )  # fmt: skip
    sizes = Sizes(o.rows, o.touched, o.dense, o.steps, o.compute)
    if o.quick:
        sizes = Sizes(10_000, 64, 4096, 3, 0.05)
    hosts_may_come(o.rate)
    heading(COLUMNS)
    with switch(HOSTS, o.rate) as made:
        print("\n".join(report(asked(made.hosts, sizes), sizes)))
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
