"""One end of a pair between a worker and a server, or two servers: frames out and in.

Frames go out whole and in order, from any thread.  `send` waits until the frame is on its way, `post` never waits.
"""

from __future__ import annotations

import math
import struct
import threading
from collections import deque
from typing import Any

import numpy as np

from hocket.training.server.optimizers import Array
from hocket.training.server.wire.frames import HEADER, KEYS, PAYLOAD, WORDS, Frame

HEAD = struct.Struct(f"<{WORDS}q")
SHORT = 64 << 10
"""Bytes up to which a frame is sent at once; the sender of a longer one lets others post meanwhile."""


class Link:
    """`comm`: a communicator of two; it belongs to the link.  One thread at a time receives."""

    def __init__(self, comm: Any) -> None:
        comm.set_timeout(math.inf)  # who dies ends it
        self.comm, self.peer = comm, 1 - comm.rank
        self.open = True
        outgoing, coming = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
        self._send = comm.prepare("send", outgoing, dest=self.peer, tag=HEADER)
        self._recv = comm.prepare("recv", out=coming, source=self.peer, tag=HEADER)
        self._outgoing, self._header = outgoing.data, coming.data
        self._sending, self._later = threading.Lock(), deque[Frame]()
        self._scratch = np.empty(0, np.uint8)
        self._coming: Any = None

    # --- out

    def send(self, frame: Frame) -> None:
        """Send a frame, and wait until its arrays may be changed."""
        words, keys, payload = frame
        if payload is not None and payload.size > SHORT:
            with self._sending:
                works = self._start(frame)
            self._flush()
            for work in works:
                work.wait()
            return
        with self._sending:
            HEAD.pack_into(self._outgoing, 0, *words)
            self._send()
            if keys is not None and keys.size:
                self.comm.send(keys, self.peer, KEYS)
            if payload is not None and payload.size:
                self.comm.send(payload, self.peer, PAYLOAD)
        if self._later:
            self._flush()

    def post(self, frame: Frame) -> None:
        """Send a frame some time soon; its arrays must not change."""
        self._later.append(frame)
        self._flush()

    def _flush(self) -> None:
        while self._later and self._sending.acquire(blocking=False):
            try:
                while self._later:
                    self._start(self._later.popleft())
            finally:
                self._sending.release()

    def _start(self, frame: Frame) -> list[Any]:
        words, keys, payload = frame
        works = [self.comm.send(np.array(words, np.int64), self.peer, HEADER, async_op=True)]
        for array, tag in ((keys, KEYS), (payload, PAYLOAD)):
            if array is not None and array.size:
                works.append(self.comm.send(array, self.peer, tag, async_op=True))
        return works

    # --- in

    def words(self, timeout: float | None = None) -> tuple[int, ...] | None:
        """The next frame's header; its keys and its payload have to be received next.  None: the time was over."""
        if timeout is None and self._coming is None:
            self._recv()
        else:
            self._coming = self._coming or self._recv.start()
            if not self._coming.wait(timeout):
                return None
            self._coming = None
        return HEAD.unpack_from(self._header)

    def keys(self, count: int) -> Array | None:
        """The keys behind a header that told of so many."""
        return self.comm.recv(np.empty(count, np.int64), self.peer, KEYS) if count else None

    def payload(self, nbytes: int, reuse: bool = False) -> Array | None:
        """The payload behind a header.  `reuse`: it is valid until the next one."""
        if not nbytes:
            return None
        if not reuse:
            room = np.empty(nbytes, np.uint8)
        else:
            if self._scratch.size < nbytes:
                self._scratch = np.empty(nbytes, np.uint8)
            room = self._scratch[:nbytes]
        return self.comm.recv(room, self.peer, PAYLOAD)  # type: ignore[no-any-return]

    def into(self, room: Array) -> None:
        """The payload, into this memory of its size."""
        self.comm.recv(room, self.peer, PAYLOAD)

    def close(self) -> None:
        """Leave it.  The other end does so too, or is gone."""
        if self.open:
            self.open = False
            self.comm.close(log_as="a link of a parameter server")


class Shared(Link):
    """A link that several threads of a client use, one at a time."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self.ordering, self.receiving = threading.RLock(), threading.Lock()
        self.wanted, self.pulls, self.waiting = threading.Event(), 0, 0
        self.driver: threading.Thread | None = None
        self._counting = threading.Lock()

    def drives(self, more: int) -> None:
        """So many pulls more that nobody waits for."""
        with self._counting:
            self.pulls += more
