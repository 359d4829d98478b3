"""Where a worker's ways lead: links to the heads of the shards, as the newest view has them; made, lost, made again."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from hocket.errors import Error, PeerLostError
from hocket.training.server.views import View
from hocket.training.server.wire import frames
from hocket.training.server.wire.frames import BYE, Frame
from hocket.training.server.wire.link import SharedLink
from hocket.training.server.wire.messages import OPEN, Named
from hocket.training.server.wire.reaching import again, reached
from hocket.training.server.worker.outbox import Outbox
from hocket.training.server.worker.ways import Way

log = logging.getLogger("hocket")
LOOK = 0.05
"""Seconds between two looks for a view."""


def fate(outbox: Outbox) -> str:
    """The fate of changes that a shard had acknowledged, and what to do."""
    done, kept = outbox.changes(outbox.acknowledged), outbox.changes(outbox.kept)
    what = f"{kept} of the {done} pushes of this worker" if kept else f"perhaps some of this worker's {done} pushes"
    return (
        f"and what that acknowledged is gone; a snapshot has {what}: serve(..., snapshot=folder, every=seconds) goes "
        "on from the newest, and copies=1 loses nothing with one server"
    )


class Heads:
    """`elastic`: a shard may get another head.  `timeout`: seconds to wait for it.  `how`: as in `hocket.connect`."""

    def __init__(self, who: str, worker: Named, elastic: bool, timeout: float, how: Mapping[str, Any]) -> None:
        self.who, self._worker, self._elastic, self._timeout, self._how = who, worker, elastic, timeout, how
        self.ways: list[Way] = []
        self.view: View | None = None
        self.over = False
        self._links: dict[int, SharedLink] = {}
        """By the server's uid."""
        self._reaching: dict[int, threading.Lock] = {}
        """Likewise: held while a link is made, as answers come by the one that has greeted last."""
        self._viewed, self._installing = threading.Condition(), threading.Lock()

    def install(self, view: View | None) -> None:
        """Called with each view; None: this worker is out."""
        with self._installing:
            if view is not None and not self.over:
                if not self.ways:
                    self.ways = [Way(shard, self._worker.uid, self.lose) for shard in range(view.shards)]
                for way, head in zip(self.ways, view.heads, strict=True):
                    way.most = max(1, OPEN // view.heads.count(head))
                    self._greet(view, way, self._to(view, head))
            with self._viewed:
                self.view = view
                self._viewed.notify_all()
            if any(way.link is None for way in self.ways):
                self._reach_again()

    def lose(self, link: SharedLink, error: Error) -> None:
        """The server at its other end is gone, or cut off."""
        if link.open:
            log.info("%s: a link has ended: %s", self.who, error)
            link.close()
            self._reach_again()
        if not self._elastic:
            raise error

    def wait_for(self, way: Way, deadline: float) -> None:
        """The shard has no head now: wait until the head of this view is reached again, or for the next view."""
        until = time.monotonic() + self._timeout
        with self._viewed:
            while way.link is None or not way.link.open:
                if self.view is None or not self._elastic or time.monotonic() > until:
                    raise PeerLostError(f"{self.who}: shard {way.shard} has lost its server, {fate(way.outbox)}", [])
                if time.monotonic() > deadline:
                    return
                self._viewed.wait(LOOK)

    def close(self, said: bool = False) -> None:
        """End all links.  `said`: tell the servers before; else they hear that this worker has left in the middle."""
        self.over = True
        why = None if said else Error(f"{self.who} has left, and has not waited for its pushes")
        for link in self._links.values():
            if said:
                with contextlib.suppress(Error):
                    link.send(Frame([BYE] * frames.WORDS))
            link.wanted.set()
            link.close(why)

    def _reach_again(self) -> None:
        """In a thread: the head of a shard may live, and the link to it alone have ended."""
        if self._elastic and self.view is not None:
            again(partial(self._linked, self.view), time.sleep)

    def _linked(self, view: View) -> bool:
        """Are all ways open, or is this no longer the view?  Those that are not are tried."""
        lost = [way for way in self.ways if way.link is None or not way.link.open]
        for way in lost if self.view is view and not self.over else ():
            link = self._to(view, view.heads[way.shard])
            with self._installing:
                if link not in (None, way.link) and self.view is view:  # else another thread has greeted
                    self._greet(view, way, link)
        return not lost or self.view is not view or self.over

    def _greet(self, view: View, way: Way, link: SharedLink | None) -> None:
        with contextlib.suppress(Error):  # who waits for it hears that it has ended
            way.greet(link, view.generation)

    def _to(self, view: View, uid: int) -> SharedLink | None:
        """The link to a server, made if there is none.  None: it cannot be reached, so it is about to be lost."""
        with self._reaching.setdefault(uid, threading.Lock()):
            link = self._links.get(uid)
            if link is not None and link.open:
                return link
            try:
                link = self._links[uid] = reached(SharedLink, view, uid, self._worker, self._how)
            except Error as error:
                if not self._elastic:
                    raise
                log.warning("%s: the server at %s cannot be reached: %s", self.who, view.addresses[uid], error)
                return None
            return link
