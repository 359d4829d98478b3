"""Two ranks measure the link between them: round trips of one number, then streams in either direction.

The first rank of the pair leads: it says what comes next, and when it is over.  Bytes and time are bounded.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from hocket.collectives.communicator.communicator import Communicator

PING, OUT, BACK, END = range(4)
TAG = 1
FEWEST, MOST = 64 << 10, 4 << 20
"""Bytes of a stream.  The first are few, as the link may be slow."""
PINGS = (4, 12, 48, 192)
"""Round trips, set by set as long as there is time."""
ENOUGH = 12
"""Streams of the longest length, if there is time."""


class Speed(NamedTuple):
    """The measurement between two ranks, seen from the lower one."""

    latency: float
    """Seconds of a short message: half of the shortest round trip."""
    out: float
    """Bytes a second from the lower rank to the higher one, ..."""
    back: float
    """... and from the higher one to the lower one."""

    def better(self, other: Speed) -> Speed:
        """The better of two measurements: what disturbs one only makes it slower."""
        return Speed(min(self.latency, other.latency), max(self.out, other.out), max(self.back, other.back))


def room() -> np.ndarray:
    """Memory for the streams of a rank; touched, so that no page is missing."""
    return np.ones(MOST, np.uint8)


def lead(comm: Communicator, peer: int, seconds: float, space: np.ndarray) -> Speed:
    """Measure, within about `seconds`; `peer` calls `follow` meanwhile."""
    word = np.zeros(2, np.int64)
    latency = _round_trips(comm, peer, time.monotonic() + seconds / 4, word) / 2
    rates = [_streams(comm, peer, kind, seconds / 3, latency, word, space) for kind in (OUT, BACK)]
    _say(comm, peer, word, END, 0)
    return Speed(latency, rates[0], rates[1])


def follow(comm: Communicator, leader: int, space: np.ndarray) -> None:
    """Do what the leader says."""
    word = np.zeros(2, np.int64)
    while True:
        comm.recv(word, leader, TAG)
        kind, number = int(word[0]), int(word[1])
        if kind == END:
            return
        if kind == PING:
            for _ in range(number):
                comm.recv(word, leader, TAG)
                comm.send(word, leader, TAG)
        elif kind == OUT:
            comm.recv(space[:number], leader, TAG)
            comm.send(word, leader, TAG)
        else:
            comm.send(space[:number], leader, TAG)


def _say(comm: Communicator, peer: int, word: np.ndarray, kind: int, number: int) -> None:
    word[:] = kind, number
    comm.send(word, peer, TAG)


def _round_trips(comm: Communicator, peer: int, until: float, word: np.ndarray) -> float:
    """Seconds of the shortest.  The first set of them also opens the connection."""
    best = float("inf")
    for number in PINGS:
        _say(comm, peer, word, PING, number)
        for _ in range(number):
            start = time.perf_counter()
            comm.send(word, peer, TAG)
            comm.recv(word, peer, TAG)
            best = min(best, time.perf_counter() - start)
        if time.monotonic() > until:
            break
    return best


def _streams(
    comm: Communicator, peer: int, kind: int, seconds: float, latency: float, word: np.ndarray, space: np.ndarray
) -> float:
    """Bytes a second: the best of the longest streams for which there is time."""
    until, nbytes, rate, again = time.monotonic() + seconds, FEWEST, 0.0, ENOUGH
    while True:
        start = time.perf_counter()
        _say(comm, peer, word, kind, nbytes)
        if kind == OUT:
            comm.send(space[:nbytes], peer, TAG)
            comm.recv(word, peer, TAG)
        else:
            comm.recv(space[:nbytes], peer, TAG)
        took = time.perf_counter() - start
        found = nbytes / max(took - latency, took / 2)  # one short message more than the stream itself
        longer = nbytes < MOST and time.monotonic() + 4 * took < until
        rate, again = max(rate, found), again if longer else again - 1
        if not again or time.monotonic() + took > until:
            return rate
        if longer:
            nbytes, rate = 4 * nbytes, 0.0
