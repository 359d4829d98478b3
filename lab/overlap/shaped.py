"""Two hosts, one rank on each, and a slow cable: how the programs of this room run their ranks."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.bench.harness.machine import describe
from hocket.conformance.jobs.ranks import found_on
from hocket.errors import ArgumentError
from hocket.system.namespaces.hosts import hosts, refusal, remove_stale

PATIENCE = 600.0


def options(module: str, doc: str, rates: str = "100mbit,1gbit") -> argparse.ArgumentParser:
    """Options that all programs here have."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=doc.split("\n")[0], allow_abbrev=False)
    made.add_argument("--rates", default=rates, help=f"of the cable, in tc's words ({rates})")
    made.add_argument("--quick", action="store_true", help="a few rounds, to see that it runs")
    return made


def on_a_cable(module: str, rate: str, words: Sequence[object], **env: str) -> dict[str, Any]:
    """The numbers that rank 0 of `python -m module rank *words` found, with a cable of that rate between two ranks."""
    if why := refusal(rate):
        raise ArgumentError(why)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the hosts are removed
    remove_stale()
    with hosts(rate, "pfifo_fast") as names:
        command = [sys.executable, "-m", module, "rank", *map(str, words)]
        found, *_ = found_on(names, 1, command, module, PATIENCE, **env)
    return found


def tell(comm: Any, found: dict[str, Any]) -> None:
    """Rank 0 says what was found."""
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


def heading(columns: Sequence[str]) -> None:
    """Print the head of a table, under the machine's name."""
    about = describe()
    print(f"{about['processor']}, {about['usable_cores']} cores, load {about['load'][0]:.1f}\n")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def calibrated(comm: Any, seconds: float) -> int:
    """Floats whose allreduce takes so long: the median of pairs, one right behind the other."""
    n = 50_000
    for turn in range(5):
        x, found = np.ones(n, np.float32), []
        for _ in range(3 + 2 * turn):
            found.append(timed(comm, lambda x=x: [comm.allreduce(x, "avg") for _ in range(2)]) / 2)  # type: ignore[misc]
        slowest = comm.allreduce(np.array([np.median(found)]), "max")[0]
        n = max(1000, int(n * seconds / float(slowest)))
    return n


def timed(comm: Any, call: Callable[[], object]) -> float:
    """Seconds of a call that all ranks begin together."""
    comm.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
