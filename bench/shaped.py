"""Is `hocket simulate` right?  Two hosts of two ranks with a slow cable between them, measured beside simulated.

    python -m hocket.bench.shaped [--rate 1gbit]          as root

The simulator's parameters are measured first, by other means than the calls that it is to predict: the cable's rate by
one message each way at once, latencies by ping-pong, the rate inside a host by messages between its ranks, reduction by
the kernel alone.  Then allreduce runs with each algorithm and size.  The simulator knows nothing of other programs:
when these keep the cores busy, the cable waits for the ranks, and what is measured is longer than what is simulated.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import hocket
from hocket.algorithms import Link, Topology, get, hierarchical, simulate
from hocket.bench.rivals.ours import timed
from hocket.collectives.measuring.cases import parse_size
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.system.namespaces.hosts import sent
from hocket.transports.base import Traits

RANKS, HOSTS = 2, 2
ALGORITHMS = ("hierarchical", "ring")
TRIALS = 7
LONG = 1 << 24
"""Bytes of the messages that measure rates."""
PATIENCE = 300.0


def run(names: Sequence[str], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Run a job; the numbers that rank 0 found.  All ranks are gone afterwards."""
    words = again("hocket.bench.shaped", *sizes)
    return found_on(names, RANKS, words, "shaped", PATIENCE)


# --------------------------------------------------------------------------------------------- a rank


def rank(sizes: Sequence[int]) -> None:
    """Measure, with the others; rank 0 prints a line of JSON for each finding."""
    with hocket.init() as comm:
        if comm.groups != ((0, 1), (2, 3)):
            raise SystemExit(f"shaped: expected two hosts of two ranks, not {comm.groups}")
        found = {
            "overhead_and_latency": _ping_pong(comm, 0, RANKS),
            "inside_latency": _ping_pong(comm, 0, 1),
            "rate": LONG / _both_ways(comm, 0, RANKS),
            "inside_rate": LONG / _both_ways(comm, 0, 1),
            "reduction": _reduction(),
        }
        if comm.rank == 0:
            print(json.dumps(found), flush=True)
        for algorithm in ALGORITHMS:
            for nbytes in sizes:
                row = _allreduce(comm, algorithm, nbytes)
                if comm.rank == 0:
                    print(json.dumps(row), flush=True)


def _ping_pong(comm: Any, a: int, b: int) -> float:
    """Seconds of 8 bytes one way."""
    x, rounds = np.zeros(1), 100

    def call() -> None:
        for _ in range(rounds if comm.rank in (a, b) else 0):
            if comm.rank == a:
                comm.send(x, b)
                comm.recv(x, b)
            else:
                comm.recv(x, a)
                comm.send(x, a)

    return timed(comm, call, TRIALS) / rounds / 2


def _both_ways(comm: Any, a: int, b: int) -> float:
    """Seconds of a long message each way at once."""
    x, y = np.zeros(LONG // 4, np.float32), np.zeros(LONG // 4, np.float32)
    other = {a: b, b: a}.get(comm.rank)
    return timed(comm, lambda: other is not None and comm.sendrecv(x, other, y, other), TRIALS)


def _reduction() -> float:
    """Seconds a byte of a float32 sum of two."""
    from hocket.kernels.cpu.reduce import reduce_arrays

    x = [np.zeros(1 << 18, np.float32) for _ in range(3)]
    trials = []
    for _ in range(TRIALS):
        start = time.perf_counter()
        reduce_arrays(x[0], x[1:], "sum")
        trials.append(time.perf_counter() - start)
    return float(np.median(trials)) / x[0].nbytes


def _allreduce(comm: Any, algorithm: str, nbytes: int) -> dict[str, Any]:
    x = np.zeros(nbytes // 4, np.float32)
    before = sent()
    seconds = timed(comm, lambda: comm.allreduce(x, algorithm=algorithm), TRIALS)
    each = (sent() - before) / (TRIALS + 1)
    return {
        "algorithm": algorithm,
        "nbytes": nbytes,
        "seconds": seconds,
        "wire": comm.allgather(np.array([each])).tolist(),
    }


# --------------------------------------------------------------------------------------------- the table


def model(found: dict[str, float]) -> Topology:
    """The measured numbers, in the simulator's words.  A ping-pong is latency and two overheads: here all latency."""
    return Topology(
        Link(found["overhead_and_latency"], found["rate"]), RANKS, HOSTS,
        inside=Link(found["inside_latency"], found["inside_rate"]), overhead=0.0, reduction=found["reduction"],
    )  # fmt: skip


def report(lines: Sequence[dict[str, Any]]) -> None:
    found, *rows = lines
    there = model(found)
    print(
        f"# measured: cable {there.link.latency * 1e6:.1f} us, {found['rate'] * 8e-9:.3f} Gbit/s each way at once;"
        f" inside {found['inside_latency'] * 1e6:.1f} us, {found['inside_rate'] / 1e9:.1f} GB/s;"
        f" reduction {1e-9 / there.reducing:.1f} GB/s"
    )
    print("| algorithm | bytes | measured ms | simulated ms | error | on the wire, host a, host b (n) | simulated |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        ring = row["algorithm"] == "ring"
        algorithm = get("allreduce", "ring") if ring else hierarchical("allreduce", there.groups(RANKS * HOSTS))
        predicted = simulate(algorithm, RANKS * HOSTS, row["nbytes"], there, segment=Traits().between_hosts)
        error = predicted.seconds / row["seconds"] - 1
        wire = [each / row["nbytes"] for each in row["wire"][::RANKS]]
        ideal = predicted.share * predicted.seconds * there.link.bandwidth / row["nbytes"]
        print(
            f"| {row['algorithm']} | {row['nbytes']} | {row['seconds'] * 1e3:.2f} | {predicted.seconds * 1e3:.2f}"
            f" | {error:+.1%} | {wire[0]:.3f}, {wire[1]:.3f} | {ideal:.3f} |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hocket.bench.shaped", description="Measured beside simulated.")
    parser.add_argument("--rate", default="1gbit", help="of the cable, in tc's words (1gbit)")
    parser.add_argument("--bytes", default="1M,4M,16M", metavar="N,...", help="(1M,4M,16M)")
    options = parser.parse_args(argv)
    sizes = [parse_size(text) for text in options.bytes.split(",")]
    with cabled(options.rate) as names:
        lines = run(names, sizes)
    report(lines)
    return 0


if __name__ == "__main__":
    main_or_rank(main, lambda *sizes: rank([*map(int, sizes)]))
