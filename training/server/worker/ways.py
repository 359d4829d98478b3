"""A worker's way to one shard: what goes out, in order, and what has not ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from hocket.errors import Error
from hocket.training.server.shards.store import Change, What
from hocket.training.server.wire.frames import ACK, ANSWER, framed, message
from hocket.training.server.wire.link import SharedLink
from hocket.training.server.wire.messages import OPEN, Push
from hocket.training.server.worker.handles import OpenPart, take_answer
from hocket.training.server.worker.outbox import Outbox

log = logging.getLogger("hocket")
NOBODY = OpenPart(None, (0, 0), 0)
"""Waits for a clock."""


class Way:
    """`lost(link, error)` is called when its link has ended.  `link`: to the shard's head; None: it has none now."""

    def __init__(self, shard: int, worker: int, lost: Callable[[SharedLink, Error], None]) -> None:
        self.shard, self.outbox, self._lost = shard, Outbox(worker), lost
        self.link: SharedLink | None = None
        self.most = OPEN
        """Pushes and pulls that have not ended, at most: an equal part for each shard of a server."""
        self.open: dict[int, OpenPart] = {}
        self.nbytes = 0
        """Bytes of what is open."""
        self.sending, self.state = threading.RLock(), threading.Lock()
        """The first is held while a frame goes out, so that they do in order; the second for moments."""

    def has_room(self, nbytes: int, window: int) -> bool:
        """May so many bytes more be on their way?"""
        return len(self.open) < self.most and (not self.nbytes or self.nbytes + nbytes <= window)

    def may_pull(self, most: int) -> bool:
        """Are fewer pulls than `most`, and than half of the room, under way?"""
        return len(self.outbox.pulls) < min(most, max(1, self.most // 2))

    def push(self, change: Change, entry: OpenPart) -> None:
        self._begin(self.outbox.push, change, entry)

    def pull(self, what: What, entry: OpenPart, clock: int | None = None) -> None:
        self._begin(self.outbox.pull, what, entry, clock)

    def tick(self, clock: int | None) -> None:
        self._begin(self.outbox.tick, clock, NOBODY)

    def _begin(self, act: Callable[..., tuple[int, list[Any]]], what: Any, entry: OpenPart, *more: Any) -> None:
        """Send it if the shard has a head; else it goes out once there is one."""
        with self.sending:
            with self.state:
                number, out = act(what, *more)
                self.open[number] = entry
                self.nbytes += entry.nbytes
            link = self.link
            if link is None:
                return
            try:
                for each in out:
                    frame = framed(self.shard, each)
                    if link.read and type(each) is Push:
                        frame.words[4], link.read = link.read, 0  # type: ignore[index]
                    link.send(frame)
            except Error as error:
                self._lost(link, error)

    def take(self, link: SharedLink, words: tuple[int, ...]) -> list[str]:
        """A frame whose header has come on this link.  What went wrong and nobody waits for, in words."""
        payload, nbytes = None, words[6]
        if words[0] & 0xFF == ANSWER:
            take_answer(link, self.open.get(words[3]), nbytes)
        elif nbytes:
            payload = link.payload(nbytes)
        if words[0] & 0xFF == ACK and words[5]:
            link.read = words[5]
        said = message(words, None, payload)
        entries = []
        with self.state:
            ended, out = self.outbox.take(said)
            for each in ended:
                entry = self.open.pop(each.number, NOBODY)
                self.nbytes -= entry.nbytes
                entries.append((entry, each.why))
        for each in out:
            link.post(framed(self.shard, each))
        for entry, why in entries:
            if entry.alone:
                link.drives(-1)
            if why and entry.undo is not None:
                entry.undo()
            if entry.handle is not None:
                entry.handle.end(self, entry.part, why)
        return [why for entry, why in entries if entry.handle is None and why]

    def greet(self, link: SharedLink | None, generation: int) -> None:
        """This link leads to the shard's head in this generation."""
        with self.sending, self.state:
            self.link, hello = link, self.outbox.view(generation)
        if link is not None:
            for each in hello:
                link.post(framed(self.shard, each))
