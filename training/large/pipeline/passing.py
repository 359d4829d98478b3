"""Messages between the ranks of a pipeline: each has a tag of its own, by direction, stage and micro-batch.

Receives are posted a few passes ahead, so that a message comes while the rank computes, and no rank has room for more
messages than that.  A message that comes earlier waits beside them: there is no order of sends that could be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hocket.compression.memory import contiguous
from hocket.training.flat import Array
from hocket.training.large.pipeline.orders import FORWARD, Pass

MOST = 1 << 16
"""Micro-batches that are told apart: more are never under way."""
AHEAD = 2
"""Receives that are posted, besides the one that is needed now."""


class Passing:
    """The messages of a step, or of several.  `order`: this rank's passes; `chunks`: how many stages each rank has.

    `room(pass)`: an array that a message fits in, which may come to be known late (None: not yet).
    """

    def __init__(
        self, comm: Any, order: Sequence[Pass], chunks: int, room: Callable[[Pass], Array | None]
    ) -> None:
        self.comm, self.chunks, self.room = comm, chunks, room
        self.last = chunks * comm.size - 1
        """The last stage's number; those of rank 0 are 0, K, 2K, ..."""
        self._wanted = [each for each in order if self.source(each) is not None]
        """Passes that need a message which is not posted, in order."""
        self._posted: dict[Pass, tuple[Any, Array]] = {}
        self._sent: list[tuple[Any, Array]] = []

    def follow(self, order: Sequence[Pass]) -> None:
        """These passes come after those."""
        self._wanted += [each for each in order if self.source(each) is not None]

    def number(self, each: Pass) -> int:
        """The number of the pass's stage, among those of all ranks."""
        return int(each.chunk * self.comm.size + self.comm.rank)

    def source(self, each: Pass) -> int | None:
        """The stage whose message the pass needs; None: it begins or ends the way of its micro-batch."""
        number = self.number(each)
        forward = each.way == FORWARD
        return None if number == (0 if forward else self.last) else number + (-1 if forward else 1)

    def take(self, each: Pass) -> Array:
        """The array that the stage before has sent to this pass."""
        self._post(each)
        work, out = self._posted.pop(each)
        work.wait()
        return out

    def send(self, each: Pass, x: Array) -> None:
        """Send a pass's result to the next stage on its way, if there is one.  Returns at once."""
        number, forward = self.number(each), each.way == FORWARD
        if number != (self.last if forward else 0):
            x = contiguous(x)
            to = (number + (1 if forward else -1)) % self.comm.size
            self._sent.append((self.comm.send(x, to, self._tag(each.way, each.micro, number), async_op=True), x))
            self._sent = [(work, x) for work, x in self._sent if not work.done()]

    def end(self) -> None:
        """Wait until all that this rank has sent is away."""
        for work, _ in self._sent:
            work.wait()

    def _post(self, needed: Pass) -> None:
        """Post receives up to this pass, and the next ones."""
        while self._wanted and (needed not in self._posted or len(self._posted) <= AHEAD):
            each, source = self._wanted[0], self.source(self._wanted[0])
            out = self.room(each)
            if source is None or out is None:
                return
            tag = self._tag(each.way, each.micro, source)
            self._posted[each] = self.comm.recv(out, source % self.comm.size, tag, async_op=True), out
            del self._wanted[0]

    def _tag(self, way: str, micro: int, sender: int) -> int:
        return int((2 * (micro % MOST) + (way == FORWARD)) * (self.last + 1) + sender)
