"""One end of a pair between a worker and a server, or two servers: frames out and in.

Frames go out whole and in order, from any thread.  `send` waits until the frame is on its way, `post` never waits:
a server posts, so that a link that does not read is its own loss.
"""

from __future__ import annotations

import math
import secrets
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.training.server.optimizers import Array
from hocket.training.server.wire.frames import ACK, HEADER, KEYS, PAYLOAD, SHORT, WORDS, Frame, key_count

HEAD = struct.Struct(f"<{WORDS}q")
AT_ONCE = 64 << 10
"""Bytes up to which a frame is sent at once; the sender of a longer one lets others post meanwhile."""
ROOM = 8 << 10
"""Bytes of a short frame, at most."""
EACH = 4 << 10
"""Bytes that a frame which waits counts for besides its arrays."""
AWHILE = 0.001
"""Seconds."""
KEPT = 4 << 20
"""Bytes of a payload whose memory is used again, at most."""
SURE = 64
"""Frames without arrays that a transport holds unread."""


class ServerLink:
    """`comm`: a communicator of two; it belongs to the link.  One thread at a time receives.

    `to_server`: the other end takes short frames as one message.
    """

    def __init__(self, comm: Any, to_server: bool = False) -> None:
        comm.set_timeout(math.inf)  # who dies ends it
        self.comm, self.peer = comm, 1 - comm.rank
        self.open = True
        self.uid: int | None = None
        """The process at the other end, if that is proven: it said so, or was where a view says that it listens."""
        self.made = to_server
        """Has this end made it?"""
        outgoing, coming = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
        self._send = comm.prepare("send", outgoing, dest=self.peer, tag=HEADER)
        self._recv = comm.prepare("recv", out=coming, source=self.peer, tag=HEADER)
        self._outgoing, self._header = outgoing.data, coming.data
        self._sending, self._later = threading.Lock(), deque[Frame]()
        self._settling = threading.Lock()
        self.owes = 0
        """`ahead`, or more: what is on its way by now may be counted."""
        self._sure, self._shows, self._since = 0 if to_server else SURE, 0, 0
        """Frames that surely fit now (none behind what `send` has sent); a number that the other end shows once it has
        read it; frames sent since."""
        self.read = 0
        """The other end's number, which came last."""
        self._scratch = np.empty(0, np.uint8)
        self._coming: Any = None
        self._short = np.empty(ROOM if to_server else 0, np.uint8)
        self._room = np.empty(0 if to_server else ROOM, np.uint8)
        self._posted: deque[tuple[Any, int]] = deque()
        """The last message of each frame that was sent and not waited for, and the frame's bytes."""

    # --- out

    def send(self, frame: Frame) -> None:
        """Send a frame, and wait until its arrays may be changed."""
        words, keys, payload = frame
        if payload is not None and payload.size > AT_ONCE:
            with self._sending:
                works = self._start(frame)
            self._flush()
            for work in works:
                work.wait()
            return
        with self._sending:
            end = self._packed(frame)
            if end:
                self.comm.send(self._short[:end], self.peer, SHORT)
            else:
                if self._posted:
                    self._settle()
                if self._posted:  # the prepared words may be on their way
                    self.comm.send(np.array(words, np.int64), self.peer, HEADER)
                else:
                    HEAD.pack_into(self._outgoing, 0, *words)
                    self._send()
                if keys is not None and keys.size:
                    self.comm.send(keys, self.peer, KEYS)
                if payload is not None and payload.size:
                    self.comm.send(payload, self.peer, PAYLOAD)
        if self._later:
            self._flush()

    def _packed(self, frame: Frame) -> int:
        """Put a short frame together, one thread at a time.  Its bytes; 0: it is sent in pieces."""
        words, keys, payload = frame
        if keys is None and payload is None:
            return 0
        at = HEAD.size if keys is None else HEAD.size + keys.nbytes
        end = at if payload is None else at + payload.size
        room = self._short
        if end > room.size:
            return 0
        HEAD.pack_into(room.data, 0, *words)
        if keys is not None:
            room[HEAD.size : at] = keys.view(np.uint8)
        if payload is not None:
            room[at:end] = payload
        return end

    def drain(self, most: int) -> None:
        """Wait until no more than `most` bytes are ahead.  Raises PeerLostError."""
        while self.ahead > most:
            try:
                self._posted[0][0].wait()
            except IndexError:  # another thread sends the rest just now
                time.sleep(AWHILE)

    @property
    def ahead(self) -> int:
        """Bytes that were posted, and are not on their way yet."""
        self._settle()
        return self.owes

    def _settle(self) -> None:
        """Keep nothing that is on its way."""
        if self._posted:
            with self._settling:
                while self._posted and self._posted[0][0].done():
                    self.owes -= self._posted.popleft()[1]

    def post(self, frame: Frame) -> None:
        """Send a frame some time soon; its arrays must not change."""
        if frame.keys is None and frame.payload is None and self._posts_at_once(frame.words):
            return
        with self._settling:
            self.owes += _nbytes(frame)
            self._sure, self._since = 0, SURE
        self._later.append(frame)
        self._flush()

    def shown(self, number: int) -> None:
        """The other end has read the acknowledgement with this number, which nobody can guess, and all before it."""
        if number == self._shows:
            self._sure, self._shows = max(0, SURE - self._since), 0

    def _posts_at_once(self, words: Any) -> bool:
        """Send a header by the prepared call, if nothing else is on its way: by one that would wait where it surely
        fits, which costs 5 us less than one that does not."""
        if self._later or not self._sending.acquire(blocking=False):
            return False
        try:
            if self._posted:
                self._settle()
                if self._posted:
                    return False
            if words[0] & 0xFF == ACK and not self._shows and self._sure <= SURE // 2:
                words[5] = self._shows = 1 + secrets.randbits(62)
                self._since = 0
            self._since += 1
            HEAD.pack_into(self._outgoing, 0, *words)
            if self._sure:
                self._sure -= 1
                self._send()
            elif not (work := self._send.start()).done():
                with self._settling:
                    self.owes += EACH
                    self._posted.append((work, EACH))
        finally:
            self._sending.release()
        if self._later:
            self._flush()
        return True

    def _flush(self) -> None:
        while self._later and self._sending.acquire(blocking=False):
            try:
                while self._later:
                    frame = self._later.popleft()
                    try:
                        self._posted.append((self._start(frame, prepared=not self._posted)[-1], _nbytes(frame)))
                    except BaseException:
                        with self._settling:
                            self.owes -= _nbytes(frame)
                        raise
                    self._settle()
            finally:
                self._sending.release()

    def _start(self, frame: Frame, prepared: bool = False) -> list[Any]:
        """`prepared`: nothing is on its way, so that the prepared call is free."""
        words, keys, payload = frame
        if prepared:
            HEAD.pack_into(self._outgoing, 0, *words)
            works = [self._send.start()]
        else:
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

    def frame(self, keeps: Keeps) -> Frame:
        """The next frame that is sent in pieces."""
        return self.rest(self.header().words, keeps)

    def header(self) -> Frame:
        """The next frame without what follows its header."""
        words = self.words()
        assert words is not None  # there is no time limit
        return Frame(words)

    def rest(self, words: Sequence[int], keeps: Keeps) -> Frame:
        """The rest that follows this header."""
        reuse = not keeps(self, words)
        return Frame(words, self.keys(key_count(words)), self.payload(words[6], reuse))

    def short(self, nbytes: int, keeps: Keeps) -> Frame:
        """A frame that comes as one message of so many bytes."""
        room = self.comm.recv(self._room[:nbytes], self.peer, SHORT)
        words = HEAD.unpack_from(room)
        if keeps(self, words):
            room = room.copy()
        at = HEAD.size + 8 * key_count(words)
        keys = room[HEAD.size : at].view(np.int64) if at > HEAD.size else None
        return Frame(words, keys, room[at:] if words[6] else None)

    def keys(self, count: int) -> Array | None:
        """The keys behind a header that told of so many."""
        return self.comm.recv(np.empty(count, np.int64), self.peer, KEYS) if count else None

    def payload(self, nbytes: int, reuse: bool = False) -> Array | None:
        """The payload behind a header.  `reuse`: it is valid until the next one."""
        if not nbytes:
            return None
        if not reuse or nbytes > KEPT:
            room = np.empty(nbytes, np.uint8)
        else:
            if self._scratch.size < nbytes:
                self._scratch = np.empty(nbytes, np.uint8)
            room = self._scratch[:nbytes]
        return self.comm.recv(room, self.peer, PAYLOAD)  # type: ignore[no-any-return]

    def into(self, room: Array) -> None:
        """The payload, into this memory of its size."""
        self.comm.recv(room, self.peer, PAYLOAD)

    def close(self, why: Exception | None = None) -> None:
        """Leave it.  The other end does so too, or is gone; or it hears why it is to."""
        if self.open:
            self.open = False
            if why is not None:
                self.comm.abort(why)
            self.comm.close(log_as="a link of a parameter server")


def _nbytes(frame: Frame) -> int:
    return EACH + sum(each.nbytes for each in (frame.keys, frame.payload) if each is not None)


Keeps = Callable[[ServerLink, Sequence[int]], bool]
"""Must what follows this header last longer than until the next frame?  Asked before memory is taken for it."""


class SharedLink(ServerLink):
    """A link that several threads of a client use, one at a time."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm, to_server=True)
        self.ordering, self.receiving = threading.RLock(), threading.Lock()
        self.wanted, self.pulls, self.waiting = threading.Event(), 0, 0
        self.driver: threading.Thread | None = None
        self._counting = threading.Lock()

    def drives(self, more: int) -> None:
        """So many pulls more that nobody waits for."""
        with self._counting:
            self.pulls += more
