"""The threads that tell others when an asynchronous call has ended: futures of asyncio's and of torch's.

One thread sleeps until a call ends.  A callback may wait for another future, so each one that runs has a thread of its
own, and another thread looks after the rest.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Protocol

from hocket.collectives.waiting.progress import end_after, nudge

log = logging.getLogger("hocket")
LOOK = 0.5
"""Seconds between two looks at a call that does not end."""


class Awaited(Protocol):
    """What somebody waits for."""

    def over(self) -> bool:
        """Has it ended, well or not, or does nobody wait any more?  Never waits, and raises nothing."""

    def complete(self) -> None:
        """Tell those that wait; called once, when it is over."""

    def look(self, seconds: float) -> None:
        """What a thread that has waited for `seconds` does now and then: look whether a rank is gone."""


class Completer:
    """One for the process: `completer`."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Awaited, float]] = []
        """Each with the time at which it came."""
        self._free = 0  # threads that are not in a callback
        self._filled = threading.Condition()

    def add(self, awaited: Awaited) -> None:
        """Complete it when it is over."""
        with self._filled:
            self._waiting.append((awaited, time.monotonic()))
            self._have_one()
            self._filled.notify()
        nudge()  # it may have ended just before it came here

    def _have_one(self) -> None:
        """Under the lock: make sure that a thread looks after what waits."""
        if self._free == 0:
            self._free = 1
            threading.Thread(target=self._serve, name="hocket-futures", daemon=True).start()

    def _serve(self) -> None:
        seen = 1
        while seen:  # 0: the process ends
            found = self._over()
            if found is None:
                seen = end_after(seen, LOOK)
                self._look()
                continue
            try:
                found.complete()
            except Exception:
                log.exception("%s could not be completed", found)
            del found  # or it, and its arrays, would live while this thread sleeps
            with self._filled:
                if self._free:  # another has come meanwhile
                    return
                self._free = 1
        with self._filled:
            self._free -= 1

    def _over(self) -> Awaited | None:
        """One that is over, for this thread to complete; None if none of those that wait is."""
        with self._filled:
            while not self._waiting:
                self._filled.wait()
            for i, (awaited, _) in enumerate(self._waiting):
                if awaited.over():
                    del self._waiting[i]
                    self._free -= 1
                    if self._waiting:
                        self._have_one()
                    return awaited
        return None

    def _look(self) -> None:
        """What waiting threads do now and then: is a rank gone, or stuck in another call?"""
        with self._filled:
            oldest = self._waiting[:1]
        for awaited, since in oldest:
            awaited.look(time.monotonic() - since)


completer = Completer()
os.register_at_fork(after_in_child=lambda: completer.__init__())  # type: ignore[misc]
