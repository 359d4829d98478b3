"""The receiver of a worker's answers.

Whoever waits for an answer receives what comes, on the link that the answer will come by; only for asynchronous pulls
that nobody waits for yet, a thread receives, so that they arrive while the caller computes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable

from hocket.errors import Error, PeerLostError, TimeoutError
from hocket.training.server.wire.frames import BYE
from hocket.training.server.wire.link import SharedLink
from hocket.training.server.worker.handles import Handle
from hocket.training.server.worker.heads import Heads
from hocket.training.server.worker.ways import Way

log = logging.getLogger("hocket")
STEP = 1.0
"""Seconds that a thread waits for another one which receives, before it looks again whether that was enough."""


class Receiver:
    def __init__(self, heads: Heads) -> None:
        self._heads = heads

    def wait(self, handle: Handle, count: int, timeout: float | None) -> None:
        """Until so many of its parts have ended."""
        self.until(lambda: handle.has(count), lambda: handle.ways[0], timeout)

    def until(self, true: Callable[[], bool], way_of: Callable[[], Way], timeout: float | None = None) -> None:
        """Receive on way_of()'s link until true().  TimeoutError after so many seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        left = STEP
        while not true():
            if timeout is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{self._heads.who}: the servers have not answered within {timeout:g} s", [])
            try:
                way = way_of()
            except IndexError:  # it has ended meanwhile
                continue
            link = way.link
            if link is None or not link.open:
                self._heads.wait_for(way, deadline)
                continue
            link.waiting += 1
            try:
                if link.receiving.acquire(timeout=min(left, STEP)):
                    try:
                        if not true() and way_of() is way:  # another thread may have received it meanwhile
                            self._receive(link, None if timeout is None else left)
                    finally:
                        link.receiving.release()
            except IndexError:
                continue
            except Error as error:
                self._heads.lose(link, error)
            finally:
                link.waiting -= 1

    def drive(self, link: SharedLink | None) -> None:
        """Let a thread receive what is pulled, while nobody waits."""
        if link is None:
            return
        link.drives(1)
        link.wanted.set()
        if link.driver is None:
            link.driver = threading.Thread(target=self._driven, args=(link,), name="hocket-pull", daemon=True)
            link.driver.start()

    def _receive(self, link: SharedLink, timeout: float | None = None) -> None:
        """A frame, by the thread that holds `link.receiving`; none comes if the time is over before."""
        words = link.words(timeout)
        if words is not None:
            if words[0] & 0xFF == BYE:
                raise PeerLostError(f"{self._heads.who}: a server has ended while this rank waited for it", [])
            for why in self._heads.ways[words[0] >> 8 & 0xFFFFFF].take(link, words):
                log.warning("%s: %s", self._heads.who, why)

    def _driven(self, link: SharedLink) -> None:
        while link.open and not self._heads.over:
            link.wanted.wait()
            if link.pulls <= 0:
                link.wanted.clear()
                if link.pulls > 0:
                    link.wanted.set()
            elif link.waiting:
                time.sleep(1e-4)
            else:
                with link.receiving:
                    try:
                        if link.pulls > 0:
                            self._receive(link)
                    except Error as error:
                        with contextlib.suppress(Error):  # who waits for an answer is told (heads.py)
                            self._heads.lose(link, error)
