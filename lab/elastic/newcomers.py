"""The standstill of a job's members for a newcomer, by its state's size and whether it has loaded before.

`python -m hocket.lab.elastic.newcomers [--mb 1000] [--members 3] [--ways nobody,loaded,whole]`
nobody: the members renew, and nobody comes.  loaded: a newcomer that has taken the state before (`Crew.join`); one
block has changed since.  whole: one that takes all of it at the boundary.  Seconds are the slowest member's, from the
boundary to the end of a short allreduce behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence

import numpy as np

import hocket
from hocket.conformance.jobs.trial import Trial, module, say
from hocket.training import Again, Crew

WAYS = ("nobody", "loaded", "whole")
PATIENCE = 300.0
"""Seconds for one way."""


class State:
    """Some arrays of a megabyte to 100, as a model has them."""

    position = 0

    def __init__(self, megabytes: float) -> None:
        count = max(1, int(megabytes / 100))
        self.parts = {f"w{i}": np.zeros(int(megabytes * 1e6 / 4 / count), np.float32) for i in range(count)}

    def arrays(self) -> dict[str, np.ndarray]:
        return self.parts

    def numbers(self) -> dict[str, int]:
        return {"position": self.position}

    def load(self, numbers: dict[str, int]) -> None:
        self.position = numbers["position"]


def member(way: str, state: State) -> None:
    for i, part in enumerate(state.parts.values()):
        part += np.arange(part.size, dtype=np.float32) + i
    comm = hocket.init(timeout=60)
    crew = Crew(comm, serve=state if comm.rank == 0 else None)
    crew.boundary(state)
    say(ready=True)
    while way != "nobody" and not comm.waiting:
        time.sleep(0.01)
    state.parts["w0"][0] = state.position = 1
    comm.barrier()
    began = time.perf_counter()
    if way != "nobody":
        crew.boundary(state)
    else:
        with contextlib.suppress(Again), crew.attempt(state):
            raise hocket.PeerLostError("they renew", [])
    crew.comm.allreduce(np.ones(8))
    say(still=time.perf_counter() - began, size=crew.comm.size)
    crew.close()


def newcomer(way: str, state: State) -> None:
    join = os.environ["HOCKET_JOIN"]
    began = time.perf_counter()
    crew = Crew.join(join, state) if way == "loaded" else Crew(hocket.init(join=join, timeout=60))
    say(before=time.perf_counter() - began)
    crew.boundary(state)
    crew.comm.allreduce(np.ones(8))
    assert state.position == 1 and all(part[5] == 5 + i for i, part in enumerate(state.parts.values()))
    crew.close()


def measured(way: str, options: argparse.Namespace) -> float:
    """Seconds."""
    words = [*module("hocket.lab.elastic.newcomers"), "--rank", "--ways", way, "--mb", str(options.mb)]
    trial = Trial(words, options.members, "shm", HOCKET_ELASTIC="1", HOCKET_TIMEOUT="60")
    trial.env["HOCKET_LOBBY"] = f"{trial.directory}/lobby"
    with trial:
        deadline = time.monotonic() + PATIENCE
        while not all(trial.said(rank) for rank in range(options.members)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if way != "nobody":
            trial.add(HOCKET_JOIN=f"folder:{trial.directory}/lobby")
        late = trial.wait(PATIENCE)
        if late or any(trial.code(rank) for rank in range(trial.size)):
            raise SystemExit(f"{way}: {late} {[trial.cried(rank) for rank in range(trial.size)]}")
        return max(float(line["still"]) for r in range(options.members) for line in trial.said(r) if "still" in line)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m hocket.lab.elastic.newcomers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--mb", type=float, default=1000.0, help="megabytes of state (default: 1000)")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.rank:
        (newcomer if os.environ.get("HOCKET_JOIN") else member)(options.ways, State(options.mb))
        return 0
    print(f"# {options.mb:g} MB, {options.members} members, {os.cpu_count()} cores")
    print("| who comes | members stand still, ms | beside nobody |\n|---|---|---|")
    first = None
    for way in options.ways.split(","):
        seconds = measured(way, options)
        first = first or seconds
        print(f"| {way} | {1e3 * seconds:.0f} | {seconds / first:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
