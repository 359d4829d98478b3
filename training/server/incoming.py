"""A server's ears: short frames of all links by one thread, long ones by a thread of their link.

A thread that wakes costs more than a short frame does.  So one thread, the reader, waits for all links at once, and
carries out what is there whole.  It never waits for one link: what takes longer (a long frame, one that is not whole
yet, a shard of a view that has not come, answers that the other end does not read) is the link's own thread's, and the
reader leaves the link to it until it is quiet.  So a worker that is slow, or dies, stops its own thread alone.  All
that a server says is posted, and pushes heard meanwhile: what was read of a table is not changed while it is on its way
(shards/store.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import hocket
from hocket.errors import Error
from hocket.training.server.wire.frames import BYE, HEADER, SHORT, Frame
from hocket.training.server.wire.link import ServerLink

STAY = 0.002
"""Seconds without a frame after which a link's thread leaves it to the reader again."""
LOOK = 1.0
"""Seconds between two looks whether the server is over."""
AHEAD = 64 << 20
"""Bytes that wait on a link; whoever asks for more and does not read is not heard until it does."""
Job = Callable[[], None]


class Hears(Protocol):
    """Whose frames they are."""

    def came(self, link: ServerLink) -> None:
        """Somebody has made it."""

    def knows(self, words: Any) -> bool:
        """Can this frame be carried out without waiting for a view?"""

    def keeps(self, link: ServerLink, words: Any) -> bool:
        """Does its payload have to outlive `carry_out`?  Raises ValueError: nothing so long can follow."""

    def carry_out(self, link: ServerLink, frame: Frame) -> None: ...
    def ended(self, link: ServerLink, error: Exception | None) -> None:
        """The link's last call."""


class LinkThread:
    """A link and its thread, which has the link to itself for as long as frames are long."""

    def __init__(self, link: ServerLink, incoming: Incoming) -> None:
        self.link, self._incoming = link, incoming
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._next: hocket.Selector | None = None
        threading.Thread(target=self._work, name="hocket-link", daemon=True).start()

    def _work(self) -> None:
        error = None
        try:
            while (job := self.jobs.get()) is not None:
                job()
        except Exception as why:  # a bug of a user's optimizer, too, ends the link on which the push came
            error = why
        if self._next is not None:
            self._next.close()
        self._incoming.ended(self, error)

    def drain(self) -> None:
        """A job: hear nothing more until the other end has read."""
        self.link.drain(AHEAD)
        self._incoming.listen(self)

    def alone(self, frame: Frame | None, rest: bool) -> None:
        """A job: carry out this frame, whose `rest` is to come, and those behind it, until a short one comes, or none
        does for a while."""
        link, server = self.link, self._incoming.server
        if frame is None:
            frame = link.frame(server.keeps)
        elif rest:
            frame = link.rest(frame.words, server.keeps)
        if self._next is None:
            self._next = hocket.Selector()
            self._next.register(link.comm)
        while frame.words[0] & 0xFF != BYE:
            server.carry_out(link, frame)
            if link.owes > AHEAD:
                link.drain(AHEAD)
            message = self._next.select(STAY)
            if message is None or message[1] == SHORT:
                self._incoming.listen(self)
                return
            frame = link.frame(server.keeps)
        self.jobs.put(None)


class Incoming:
    """All links of a server.  `pairs`: where others connect."""

    def __init__(self, pairs: Any, server: Hears) -> None:
        self._pairs, self.server = pairs, server
        self._selector, self._threads = hocket.Selector(), dict[Any, LinkThread]()
        self._over = False
        threading.Thread(target=self._read, name="hocket-serve", daemon=True).start()
        threading.Thread(target=self._accept, name="hocket-accept", daemon=True).start()

    def add(self, link: ServerLink) -> None:
        """Listen to this link, too."""
        thread = self._threads[link.comm] = LinkThread(link, self)
        thread.jobs.put(lambda: self.listen(thread))

    def close(self) -> None:
        """Accept nobody.  Links that are there end with their other ends."""
        self._pairs.close()
        self._over = True
        self._selector.wake()

    def listen(self, thread: LinkThread) -> None:
        """The reader has it again."""
        self._selector.register(thread.link.comm)

    def ended(self, thread: LinkThread, error: Exception | None) -> None:
        """The thread of a link ends."""
        del self._threads[thread.link.comm]
        self.server.ended(thread.link, error)
        self._selector.wake()

    def _accept(self) -> None:
        while True:
            try:
                comm = self._pairs.accept()
            except Error:
                return
            link = ServerLink(comm)
            self.server.came(link)
            self.add(link)

    def _read(self) -> None:
        with self._selector as selector:
            while self._threads or not self._over:
                message = selector.select(LOOK)
                if message is not None:
                    self._take(self._threads[message[0]], *message[1:])

    def _take(self, thread: LinkThread, tag: int | None, nbytes: int, whole: bool) -> None:
        """Carry out what is there whole; else the link is its thread's."""
        link, server, frame, rest = thread.link, self.server, None, False
        job: Job
        try:
            if link.owes > AHEAD:
                self._selector.unregister(link.comm)
                thread.jobs.put(thread.drain)
                return
            if whole and tag == SHORT:
                frame = link.short(nbytes, server.keeps)
            elif whole and tag == HEADER:
                frame = link.header()
                rest = frame.follows
            if frame is not None and not rest and frame.words[0] & 0xFF != BYE and server.knows(frame.words):
                server.carry_out(link, frame)
                return
            job = partial(thread.alone, frame if frame is None or rest else frame.lasting(), rest)
        except Exception as error:  # the thread raises it
            job = partial(_fails, error)
        self._selector.unregister(link.comm)
        thread.jobs.put(job)


def _fails(error: Exception) -> None:
    raise error
