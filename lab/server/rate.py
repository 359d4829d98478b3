"""The number of pushes that one server acknowledges in a second.  Three workers, 4 KiB each, one at a time.

    python -m hocket.lab.server.rate [--pushes 5000] [--workers 3] [--bytes 4096]

Rows: `hocket.training.serve`; a loop of `recv` from any rank and `send` on one communicator; and a loop over a socket
of ZMQ (ipc, REP) where that is installed.  The loops check nothing, count what comes twice, and survive nobody.  A
row has pushes a second of all workers, and the median and the 99th percentile of what one push takes on a worker.
The ranks are this file again, with the argument `rank`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.ranks import again, found_here, main_or_rank
from hocket.lab.program import arguments
from hocket.training import Client, Range, serve

HEADER, PAYLOAD, ACK = 1, 2, 3


def rank(pushes: str, nbytes: str) -> None:
    """Measure both; rank 0 prints a line of JSON for each."""
    with hocket.init() as comm:
        for name, one in ROWS.items():
            seconds = one(comm, int(pushes), int(nbytes) // 4)
            said = comm.share(seconds)
            if comm.rank == 0:
                print(json.dumps({"what": name, **row([each for each in said if each])}), flush=True)


def row(said: list[list[float]]) -> dict[str, float]:
    """The rate, by the moments at which each worker's pushes began, and the last had ended.  The rate is of the time in
    which any of them pushed: workers that take turns are no faster for it."""
    every = np.concatenate([np.diff(worker) for worker in said])
    wall = max(worker[-1] for worker in said) - min(worker[0] for worker in said)
    median, p99 = (1e6 * float(np.quantile(every, part)) for part in (0.5, 0.99))
    return {"per second": every.size / wall, "median us": median, "p99 us": p99}


def _served(comm: Any, pushes: int, count: int) -> list[float]:
    tables = {"w": Range(count)}
    if comm.rank == 0:
        serve(comm, tables, on=[0], clock="async").wait()
        return []
    with Client(comm, tables) as client:
        values = np.ones(count, np.float32)
        client.push("w", values)
        return _timed(pushes, lambda: client.push("w", values))


def _bare(comm: Any, pushes: int, count: int) -> list[float]:
    header, values, ack = np.zeros(4, np.int64), np.ones(count, np.float32), np.zeros(2, np.int64)
    if comm.rank == 0:
        table = np.zeros(count, np.float32)
        for _ in range((comm.size - 1) * pushes):
            work = comm.recv(header, None, HEADER, async_op=True)
            work.wait()
            comm.recv(values, work.source, PAYLOAD)
            np.add(table, values, out=table)
            comm.send(ack, work.source, ACK)
        return []

    def push() -> None:
        comm.send(header, 0, HEADER)
        comm.send(values, 0, PAYLOAD)
        comm.recv(ack, 0, ACK)

    return _timed(pushes, push)


def _zmq(comm: Any, pushes: int, count: int) -> list[float]:
    import zmq

    header, values = bytes(64), np.ones(count, np.float32)
    place = f"ipc://@hocket-{comm.share(os.getpid())[0]}"  # a name without a file
    with zmq.Context() as context, context.socket(zmq.REP if comm.rank == 0 else zmq.REQ) as link:
        if comm.rank == 0:
            link.bind(place)
            table = np.zeros(count, np.float32)
            for _ in range((comm.size - 1) * pushes):
                _, came = link.recv_multipart()
                np.add(table, np.frombuffer(came, np.float32), out=table)
                link.send(header)
            comm.barrier()
            return []
        link.connect(place)

        def push() -> None:
            link.send_multipart([header, values.data], copy=True)
            link.recv()

        seconds = _timed(pushes, push)
        comm.barrier()
        return seconds


ROWS = {"hocket.training.serve": _served, "recv from any rank": _bare}
if importlib.util.find_spec("zmq"):
    ROWS["a loop over ZMQ"] = _zmq


def _timed(pushes: int, push: Callable[[], object]) -> list[float]:
    """By a clock that all processes of a host share."""
    moments = [time.monotonic()]
    for _ in range(pushes):
        push()
        moments.append(time.monotonic())
    return moments


def asked(pushes: int, workers: int, nbytes: int) -> list[dict[str, Any]]:
    """The rows."""
    return found_here(again("hocket.lab.server.rate", pushes, nbytes), workers + 1, "pushes", 600.0)


def main() -> int:
    options = arguments("hocket.lab.server.rate", __doc__, None, pushes=5000, workers=3, bytes=4096)
    print("| | pushes/s | median us | p99 us |\n|---|---|---|---|")
    for each in asked(options.pushes, options.workers, options.bytes):
        print(f"| {each['what']} | {each['per second']:.0f} | {each['median us']:.0f} | {each['p99 us']:.0f} |")
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
