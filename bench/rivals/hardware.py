"""The machine itself under the stopwatch, as a subject of two ranks: what no library can beat.

memcpy: `count` elements, by rank 0 alone.  duplex: `count` elements each way over one TCP socket over loopback, with
the congestion control that hocket chooses there.  pingpong: a cache line to the other core and back.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy

from hocket.bench.harness import limits
from hocket.bench.harness.worker import Ordinary
from hocket.collectives.measuring.cases import Case
from hocket.errors import ArgumentError
from hocket.transports.tcp.transport import tuned

ROUNDS = 1000
"""Round trips of the ping-pong in one call."""


class Limits(Ordinary):
    """A subject (worker.py): RANK says which of the two, LIMITS is a file that both may map, PORT is free for them."""

    name = "limits"
    size = 2

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[self.rank % len(cores)]})  # on one core they would wait for the system
        with open(os.environ["LIMITS"], "r+b") as file:
            self.shared = mmap.mmap(file.fileno(), 4096)
        self.socket = tuned(_pair(self.rank, int(os.environ["PORT"])))
        self.socket.setblocking(False)
        self.rounds = 0
        self.about = f"memcpy is NumPy's copyto; TCP by {_congestion(self.socket)}"

    def prepare(self, case: Case, given: Any, result: Any) -> Callable[[], object]:
        if case.collective == "memcpy":
            return partial(numpy.copyto, result, given) if self.rank == 0 else _nothing
        if case.collective == "duplex":
            return partial(limits.duplex, self.socket.fileno(), case.nbytes)
        if case.collective == "pingpong":
            return self._pingpong
        raise ArgumentError(f"limits has no {case.collective}")

    def _pingpong(self) -> None:
        limits.pingpong(self.shared, self.rank, self.rounds, ROUNDS)
        self.rounds += ROUNDS

    def barrier(self) -> None:
        limits.duplex(self.socket.fileno(), 1)

    def chosen(self) -> dict[str, str]:
        return {}


def _nothing() -> None:
    pass


def _pair(rank: int, port: int) -> socket.socket:
    if rank == 0:
        with socket.create_server(("127.0.0.1", port)) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            continue


def _congestion(link: socket.socket) -> str:
    return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
