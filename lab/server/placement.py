"""Where should servers stand?  Huawei's table: one or two servers, on the workers' host and on another, beside rings.

    python -m hocket.lab.server.placement [--rate 100mbit] [--compute 0.1] [--bytes 680000] [--steps 12]
                                          [--clock async]      as root

Two hosts (network namespaces) with a cable, a server and four workers on each; a worker pulls the parameters, computes
(a sleep), and pushes its gradient; nobody waits for another's clock.  The bytes are chosen so that four workers of
another host are 1.44 times one that needs no server, as Huawei's were.  A row has the steps of all workers a second, in
those of one worker alone.

The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, cabled, found_on, main_or_rank
from hocket.lab.program import arguments, heading
from hocket.training import Client, Range, serve

MODULE = "hocket.lab.server.placement"
EACH = 5
"""Ranks of a host: its first one serves, or idles."""
PATIENCE = 600.0
NEAR, FAR = (1, 2, 3, 4), (6, 7, 8, 9)


class ServerPlaces(NamedTuple):
    servers: tuple[int, ...]
    workers: tuple[int, ...]
    huawei: str


PLACES = {
    "1 server, 4 workers of another host": ServerPlaces((0,), FAR, "1.44"),
    "1 server, 4 workers of its host": ServerPlaces((0,), NEAR, "2.93"),
    "1 server, 8 workers": ServerPlaces((0,), NEAR + FAR, "3.99"),
    "2 servers, 8 workers": ServerPlaces((0, 5), NEAR + FAR, "4.42"),
    "ring, 4 workers of a host": ServerPlaces((), NEAR, ""),
    "ring, 8 workers": ServerPlaces((), NEAR + FAR, ""),
}


def rank(nbytes: str, compute: str, steps: str, clock: str) -> None:
    """Measure; rank 0 prints a line of JSON for each row."""
    with hocket.init() as comm:
        for name, place in PLACES.items():
            here = comm.rank in place.servers + place.workers
            team: Any = comm.split(int(here), comm.rank not in place.servers)
            comm.barrier()
            rate = _works(team, place, comm.rank, int(nbytes) // 4, float(compute), int(steps), clock) if here else 0.0
            rates = comm.share(rate * float(compute))
            if comm.rank == 0:
                row = {"what": name, "sum": sum(rates), "near": sum(rates[:EACH]), "far": sum(rates[EACH:])}
                print(json.dumps(row), flush=True)


def _works(team: Any, place: ServerPlaces, rank: int, count: int, compute: float, steps: int, clock: str) -> float:
    """A worker's steps a second; 0 of a server."""
    gradient, began = np.zeros(count, np.float32), time.perf_counter()
    if not place.servers:
        for _ in range(steps):
            time.sleep(compute)
            team.allreduce(gradient, op="avg", algorithm="ring")
        return steps / (time.perf_counter() - began)
    tables = {"w": Range(count)}
    if rank in place.servers:
        serve(team, tables, on=range(len(place.servers)), clock=clock).wait()
        return 0.0
    with Client(team, tables) as client:
        w, began = client.pull("w"), time.perf_counter()
        for _ in range(steps):
            client.pull("w", out=w)
            time.sleep(compute)
            client.push("w", gradient)
            client.tick()
        return steps / (time.perf_counter() - began)


def asked(names: Sequence[str], nbytes: int, compute: float, steps: int, clock: str = "async") -> list[dict[str, Any]]:
    """The rows, between these two hosts."""
    return found_on(names, EACH, again(MODULE, nbytes, compute, steps, clock), "placement", PATIENCE)


def main() -> int:
    o = arguments(MODULE, __doc__, None, rate="100mbit", compute=0.1, bytes=680_000, steps=12, clock="async")
    heading(("", "times one worker", "of these near the first server", "far", "Huawei"))
    with cabled(o.rate) as names:
        rows = asked(names, o.bytes, o.compute, o.steps, o.clock)
    for each in rows:
        figures = " | ".join(f"{each[key]:.2f}" for key in ("sum", "near", "far"))
        print(f"| {each['what']} | {figures} | {PLACES[each['what']].huawei} |")
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
