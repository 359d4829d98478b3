"""All clocks of a communicator against rank 0's, by messages over hocket's own transports."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import numpy as np

import hocket
from hocket.observe.clocks import Ping

PINGS = 64
"""At the start of a trace, and as many at its end."""


def clock_of_host() -> str:
    """Equal for processes that read the same CLOCK_MONOTONIC: this boot of the kernel, and its time namespace."""
    texts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/timens_offsets"):
        with contextlib.suppress(OSError), open(path) as file:  # a kernel without time namespaces has one for all
            texts.append(" ".join(file.read().split()))
    return " ".join(texts)


def askers(clocks: Sequence[str]) -> list[int]:
    """The ranks that ping rank 0, one for each clock that is not rank 0's; `clocks`: clock_of_host() of all ranks."""
    return [rank for rank, clock in enumerate(clocks) if clock != clocks[0] and clocks.index(clock) == rank]


def ping(
    comm: hocket.Communicator, ranks: Sequence[int], count: int = PINGS, clock: Callable[[], int] = time.monotonic_ns
) -> list[Ping]:
    """Each of `ranks` in turn asks rank 0 `count` times: its own pings, on others nothing.  `clock`: ns.

    All ranks of `comm` call it with the same arguments; those that are not asked return at once.  Cost: a round trip a
    ping, 20 to 100 us over TCP.
    """
    asked, answer = np.zeros(1, np.int64), np.zeros(2, np.int64)
    if comm.rank in ranks:
        return [_ask(comm, asked, answer, clock) for _ in range(count)]
    for rank in ranks if comm.rank == 0 else ():
        for _ in range(count):
            comm.recv(asked, rank)
            answer[0] = clock()
            answer[1] = clock()
            comm.send(answer, rank)
    return []


def _ask(comm: hocket.Communicator, asked: np.ndarray, answer: np.ndarray, clock: Callable[[], int]) -> Ping:
    t1 = clock()
    comm.send(asked, 0)
    comm.recv(answer, 0)
    t4 = clock()
    return Ping(t1, int(answer[0]), int(answer[1]), t4)
