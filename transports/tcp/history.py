"""The history of a process's connections: how often, and for how long, those with each rank were broken, or damaged."""

from __future__ import annotations

import logging
import threading
import time
from typing import NamedTuple

from hocket.transports.base import Context

log = logging.getLogger("hocket.transports")
FLAPS = 5
"""Times that a link heals in FLAPPING seconds, and is said to flap."""
FLAPPING = 60.0


class Healed(NamedTuple):
    """The connections with a rank that were made again."""

    times: int = 0
    seconds: float = 0.0
    """In which they were broken, in all."""
    longest: float = 0.0
    latest: tuple[float, ...] = ()
    """When, by time.monotonic: the last FLAPS."""

    def flaps(self) -> bool:
        return len(self.latest) == FLAPS and time.monotonic() - self.latest[0] < FLAPPING


class History:
    """That of one rank's tcp transport."""

    def __init__(self, context: Context) -> None:
        self.healed: dict[int, Healed] = {}
        self.damaged: dict[int, int] = {}
        """Pieces that came damaged.  Both by rank."""
        self.down: dict[tuple[int, int], int] = {}
        """Times that a path was found to be down, by rank and path."""
        self._me, self._lock = context, threading.Lock()
        self._damaged: dict[tuple[int, str], int] = {}

    def heals(self, rank: int, seconds: float) -> None:
        """A connection to this rank was broken for so long.  From any thread."""
        with self._lock:
            was = self.healed.get(rank, Healed())
            latest = (*was.latest, time.monotonic())[-FLAPS:]
            now = Healed(was.times + 1, was.seconds + seconds, max(was.longest, seconds), latest)
            self._me.note(f"link to rank {rank} healed", now.times, seconds, (rank, False))
            if now.flaps():
                self._me.note(f"link to rank {rank} flaps", now.times, seconds, (rank, True))
            self.healed[rank] = now
        flaps = " (it flaps: look at the cable between the hosts)" if now.flaps() and not was.flaps() else ""
        level = logging.WARNING if flaps or now.times == 1 else logging.INFO
        log.log(level, "hocket: rank %d: the connection to rank %d broke, and is made again after %.3f s%s",
                self._me.rank, rank, seconds, flaps)  # fmt: skip

    def is_down(self, rank: int, path: int, source: str) -> None:
        """Nothing reaches this rank by this path: its streams go by others."""
        with self._lock:
            self.down[rank, path] = times = self.down.get((rank, path), 0) + 1
        self._me.note(f"path {path} to rank {rank} down", times, 0.0)
        log.warning("hocket: rank %d: path %d to rank %d (from %s) is down: its streams go by another one",
                    self._me.rank, path, rank, source)  # fmt: skip

    def is_damaged(self, stream: tuple[int, str], times: int) -> None:
        """A stream of this rank's (the first word) has come damaged so often."""
        rank, more = stream[0], times - self._damaged.get(stream, 0)
        if more:
            self._damaged[stream] = times
            self.damaged[rank] = self.damaged.get(rank, 0) + more
            self._me.note(f"link from rank {rank} damaged bytes", self.damaged[rank], 0.0)
            log.warning("hocket: rank %d: bytes from rank %d came damaged, and are sent again (%d times so far)",
                        self._me.rank, rank, self.damaged[rank])  # fmt: skip

    def words(self, rank: int) -> list[str]:
        """For people: the history with this rank."""
        found, times = [], self.damaged.get(rank, 0)
        if healed := self.healed.get(rank):
            took = f"{healed.seconds:.3g} s in all, {healed.longest:.3g} at most"
            found.append(f"made again {healed.times} times, {took}{', flaps' if healed.flaps() else ''}")
        found += [f"path {path} was down" for to, path in self.down if to == rank]
        return [*found, f"damaged {times} times, and sent again"] if times else found
