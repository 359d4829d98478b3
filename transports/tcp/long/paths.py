"""The paths to other ranks: each stream has its own, and while that is down it goes by another one."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hocket.control.dial import OURS, dial
from hocket.control.handshake import ATTEMPT, Connection, Hello
from hocket.errors import TransportError
from hocket.transports.tcp.offers import PathEnds

if TYPE_CHECKING:
    from hocket.transports.tcp.history import History

PATIENCE = 0.6
"""Seconds for an attempt by one of several paths."""
PAUSE = 0.05
"""Seconds between two attempts."""


class Paths:
    """The paths of one rank's tcp transport."""

    def __init__(self, key: bytes, history: History, on_down: Callable[[int], object]) -> None:
        """on_down(rank): the first path to it is down, by which control connections go."""
        self._key, self._history, self._on_down = key, history, on_down
        self._ways: dict[int, list[PathEnds]] = {}
        self._down: set[tuple[int, int]] = set()
        """By rank and number: nothing was reached there of late."""

    def learn(self, rank: int, ways: list[PathEnds]) -> None:
        self._ways[rank] = ways

    def count(self, rank: int) -> int:
        return len(self._ways[rank])

    def dial(
        self, rank: int, number: int, hello: Hello, seconds: float, look: Callable[[], object] = lambda: None
    ) -> Connection:
        """One attempt to connect for the stream of this number: by its own path, or the next one that is not down."""
        ways = self._ways[rank]
        some = [(number + i) % len(ways) for i in range(len(ways))]
        path = next((each for each in some if (rank, each) not in self._down), some[0])
        source, address = ways[path]
        try:
            limit = min(seconds, PATIENCE) if len(ways) > 1 else seconds
            link = dial(("tcp", *address), self._key, hello, limit, look, source if path else "")
        except TransportError as why:
            if len(ways) > 1 and why.errno != errno.ECONNREFUSED:
                self._is_down(rank, path, source)
            raise
        self._down.discard((rank, path))
        return link

    def connect(
        self, rank: int, number: int, hello: Hello, seconds: float, look: Callable[[], object]
    ) -> Connection:
        """Attempts, until one does."""
        until = time.monotonic() + seconds
        while True:
            try:
                return self.dial(rank, number, hello, max(0.01, min(ATTEMPT, until - time.monotonic())), look)
            except TransportError as why:
                if why.errno in OURS or time.monotonic() > until:
                    raise
            time.sleep(PAUSE)

    def _is_down(self, rank: int, path: int, source: str) -> None:
        if (rank, path) in self._down:
            return
        self._down.add((rank, path))
        others = {(rank, each) for each in range(self.count(rank))}
        if others <= self._down:
            self._down -= others  # whichever comes back first
        else:
            self._history.is_down(rank, path, source)
            if path == 0:
                self._on_down(rank)
