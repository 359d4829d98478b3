"""Transports that are opened while the job runs: a thread of each rank takes part, whatever the rank is doing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.collectives.job.world import World

LOOK = 0.05
"""Seconds between two looks of a thread that waits for a transport."""


class Opener:
    """Opens transports of one world when the coordinator says so."""

    def __init__(self, world: World) -> None:
        self._world, self._lock = world, threading.Lock()
        self._opened: dict[str, Future[None]] = {}

    def open(self, name: str, look: Callable[[], object]) -> None:
        """Open this transport on all ranks of the job.  `look` is called now and then while this waits."""
        opened = self._of(name)
        self._world.session.open(name)
        while not opened.done():
            look()
            wait([opened], LOOK)
        opened.result()

    def _of(self, name: str) -> Future[None]:
        with self._lock:
            return self._opened.setdefault(name, Future())

    def begin(self, name: str) -> None:
        """The coordinator says so.  On the reactor's thread."""
        threading.Thread(target=self._take_part, args=(name,), name="hocket-opening", daemon=True).start()

    def _take_part(self, name: str) -> None:
        world, rounds = self._world, itertools.count()

        def exchange(value: Any) -> list[Any]:
            return world.session.exchange(value, world.config.timeout, f"open {name} {next(rounds)}")

        try:
            world.add(name, exchange)
        except BaseException as error:
            self._of(name).set_exception(error)
        else:
            self._of(name).set_result(None)
        finally:
            if world.closed and name in world.transports:  # it was left meanwhile, perhaps before there was one
                world.transports[name].close()
