"""The bytes of a layer of experts: beside one process, beside the law, and between hosts in one step or two.

    python -m hocket.lab.large.experts [--ranks 4] [--tokens 64] [--width 64] [--rounds 20]       as root

So many ranks on each of two hosts (network namespaces with a cable), two experts on each rank, gates that prefer the
first ones.  Largest difference: of results and gradients from those of one process with all experts.  Bytes: of rows
that all ranks sent in a forward and a backward pass, in 4 tokens x top x d, which is the law without a capacity.
Packets: what a host puts on the cable for one exchange of a row with each rank, acknowledgements included, beside the
messages that must cross: L (H-1) L of a host in one step, L (H-1) in two.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.system.namespaces.hosts import CABLE, ip
from hocket.training import Experts

MODULE = "hocket.lab.large.experts"
PATIENCE, EACH = 300.0, 2
Array = np.ndarray[Any, Any]


class Linear:
    """x w."""

    def __init__(self, number: int, width: int) -> None:
        self.w = np.random.default_rng(number).normal(size=(width, width))
        self.gradient = np.zeros_like(self.w)

    def forward(self, x: Array) -> tuple[Array, Any]:
        return x @ self.w, x

    def backward(self, dy: Array, kept: Any) -> Array:
        self.gradient += kept.T @ dy
        return dy @ self.w.T


def rank(tokens: str, width: str, rounds: str) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding."""
    with hocket.init() as comm:
        own = comm.split(comm.rank)
        assert own is not None
        for top in (1, 2):
            for capacity in (None, 1.25):
                for hierarchical in (False, True):
                    how = {"top": top, "capacity": capacity}
                    found = _measured(comm, own, int(tokens), int(width), int(rounds), hierarchical, how)
                    if comm.rank == 0:
                        print(json.dumps({**how, "two": hierarchical, **found}), flush=True)


def _measured(
    comm: Any, own: Any, tokens: int, width: int, rounds: int, hierarchical: bool, how: dict[str, Any]
) -> dict[str, Any]:
    count = EACH * comm.size
    apart = comm.dup()
    every, mine = ([Linear(number, width) for number in range(count)] for _ in "ab")
    mine = mine[comm.rank * EACH : (comm.rank + 1) * EACH]
    layer, whole = Experts(apart, mine, hierarchical=hierarchical, **how), Experts(own, every, **how)
    difference, sent, dropped = 0.0, 0, 0
    dice = np.random.default_rng([comm.rank, 5])
    x, dy = dice.normal(size=(2, tokens, width))
    gates = np.exp(dice.normal(size=(tokens, count)) - np.arange(count) / 2)
    gates /= gates.sum(1, keepdims=True)
    before = _rows(layer)
    (y, kept), (wanted, kept_too) = layer.forward(x, gates), whole.forward(x, gates)
    pairs = [(y, wanted), *zip(layer.backward(dy, kept), whole.backward(dy, kept_too), strict=True)]
    sent, dropped = _rows(layer) - before, layer.dropped
    sums = comm.allreduce(np.stack([expert.gradient for expert in every]))
    pairs += [(expert.gradient, sums[comm.rank * EACH + i]) for i, expert in enumerate(mine)]
    difference = max(float(abs(a - b).max()) for a, b in pairs)
    packets, seconds = _exchanged(comm, layer, rounds)
    ranks, there = comm.local_size, comm.size // comm.local_size - 1
    return {
        "difference": comm.allreduce(difference, "max"), "dropped": comm.allreduce(dropped),
        "rows": comm.allreduce(sent) / (4 * tokens * how["top"] * comm.size * 8 * width), "packets": packets,
        "messages": ranks * there * (1 if hierarchical else ranks), "seconds": comm.allreduce(seconds, "max"),
    }  # fmt: skip


def _rows(layer: Experts) -> int:
    """Bytes of rows that this rank has given to the last of its exchange's steps."""
    last = getattr(layer.exchange, "between", layer.comm)
    counts = [row for row in last.stats() if row.collective == "alltoall"]
    return sum(row.bytes for row in counts)


def _exchanged(comm: Any, layer: Experts, rounds: int) -> tuple[float, float]:
    """Packets on the cable, and seconds, of one exchange of a row with each rank."""
    one, rows = [1] * comm.size, np.ones((comm.size, 2))
    layer.exchange(rows, one, one)
    comm.barrier()
    before, began = _packets(), time.perf_counter()
    comm.barrier()
    for _ in range(rounds):
        layer.exchange(rows, one, one)
    comm.barrier()
    return (_packets() - before) / rounds, (time.perf_counter() - began) / rounds


def _packets() -> int:
    """Packets that this host has put on its cable."""
    return int(json.loads(ip("-json", "-s", "link", "show", CABLE))[0]["stats64"]["tx"]["packets"])


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(MODULE, __doc__, argv, ranks=4, tokens=64, width=64, rounds=20)
    heading([
        "top", "capacity", "rows travel in", "largest difference", "rows left out", "bytes of rows, in the law's",
        "packets of a host and exchange", "messages that must cross", "exchange, ms",
    ])  # fmt: skip
    with cabled() as names:
        words = again(MODULE, options.tokens, options.width, options.rounds)
        rows = found_on(names, options.ranks, words, "experts", PATIENCE)
    for row in rows:
        way = "two steps" if row["two"] else "one"
        print(
            f"| {row['top']} | {row['capacity'] or ''} | {way} | {row['difference']:.1e} | {row['dropped']} "
            f"| {row['rows']:.3f} | {row['packets']:.1f} | {row['messages']} | {row['seconds'] * 1e3:.2f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
