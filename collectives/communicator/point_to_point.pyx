# cython: annotation_typing=False
"""Messages between two ranks, matched by tag.  Methods of Cython's for the same reason as in collectives.pyx."""

from typing import Any

from hocket.collectives.communicator.collectives cimport Collectives
from hocket.collectives.quick.short_messages cimport RECEIVES, SENDS, ShortMessages
from hocket.collectives.quick.shortcut cimport MISS

from hocket.collectives.calls.packed_messages import packed, received


cdef class PointToPoint(Collectives):
    """Two ranks call these."""

    cdef ShortMessages messages

    def _set_messages(self, ShortMessages messages):
        self.messages = messages

    def send(
        self, x: Any, dest: int, tag: int = 0, async_op: bool = False, timeout: float | None = None,
        transport: str | None = None, codec: str | None = None,
    ) -> Any:
        """Send x to `dest`.  Returns when x may be changed, perhaps before `dest` has received it.

        `codec`: "lossless", for float32, float16 and bfloat16 in host memory; the recv says so, too.  A rank may send to itself: what it sends is copied, and kept until it receives it.
        """
        if codec is not None:
            x = packed(x, codec)
        if timeout is None and transport is None:
            done = self.messages.take(SENDS, x, dest, None, None, tag, async_op)
            if done is not MISS:
                return done
        return self.messenger.send(x, dest, tag, async_op, timeout, transport)

    def recv(
        self, out: Any, source: int | None, tag: int | None = 0, async_op: bool = False, timeout: float | None = None,
        transport: str | None = None, codec: str | None = None,
    ) -> Any:
        """Receive the oldest message with `tag` from `source` into `out`, which has its size and dtype.

        source=None: from any rank; ranks whose messages wait take turns.  tag=None: with any tag.  With async_op=True
        `Work.source` and `Work.tag` say what it was, and `probe` says so before.  `codec`: as in the send; it goes with
        neither async_op nor transport.
        """
        if codec is not None:
            return received(self.messenger, out, source, tag, codec, async_op, timeout, transport)
        if timeout is None and transport is None:
            done = self.messages.take(RECEIVES, None, None, out, source, tag, async_op)
            if done is not MISS:
                return done
        return self.messenger.recv(out, source, tag, async_op, timeout, transport)

    def sendrecv(
        self, x: Any, dest: int, out: Any, source: int, tag: int = 0, async_op: bool = False,
        timeout: float | None = None, transport: str | None = None,
    ) -> Any:
        """Send x to `dest` while receiving `out`, which lies apart from x, from `source`.  It cannot deadlock, even in
        a ring.
        """
        if source is not None and timeout is None and transport is None:
            done = self.messages.take(SENDS | RECEIVES, x, dest, out, source, tag, async_op)
            if done is not MISS:
                return done
        return self.messenger.sendrecv(x, dest, out, source, tag, async_op, timeout, transport)
