"""A worker's end of one shard, without I/O: what it has sent and what is open, to be sent again after a failover."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, NamedTuple

from hocket.training.server.wire.messages import Ack, Answer, Clock, Hello, Pull, Push, Refused, Welcome


class PartEnded(NamedTuple):
    """A push or pull of this shard has ended.  `why`: it was refused."""

    number: int
    value: Any = None
    why: str = ""


class Outbox:
    """Messages are sent when the head has said welcome in this generation, in order; open ones again after the next."""

    def __init__(self, worker: int) -> None:
        self.worker, self.generation, self.ready = worker, -1, False
        self.sequence = self.acknowledged = self.kept = self.lost = 0
        """`lost`: changes that were acknowledged, and that a loss took back to the snapshot before them."""
        self._others: list[int] = []
        """Numbers that are no changes, behind the snapshot before the newest: clocks, and what was refused."""
        self._dropped = 0
        """Count of such numbers that were dropped before."""
        self.slowest = 0
        self.clock: int | None = None
        """None: it has not joined."""
        self.pushes: dict[int, Any] = {}
        self.pulls: dict[int, tuple[int, Any]] = {}

    def view(self, generation: int) -> list[Any]:
        """A new view: greet the shard's head."""
        self.generation, self.ready = generation, False
        return [Hello(generation, self.worker)]

    def push(self, change: Any) -> tuple[int, list[Any]]:
        """The change's number, and what to send now."""
        self.sequence += 1
        self.pushes[self.sequence] = change
        return self.sequence, [self._push(self.sequence, change)] if self.ready else []

    def pull(self, what: Any, clock: int | None = None) -> tuple[int, list[Any]]:
        """`clock`: the one that it is of, if not this worker's."""
        self.sequence += 1
        self.pulls[self.sequence] = ((self.clock or 0) if clock is None else clock, what)
        return self.sequence, [self._pull(self.sequence)] if self.ready else []

    def tick(self, clock: int | None) -> tuple[int, list[Any]]:
        """This worker's clock; None: it leaves."""
        self.clock = clock
        self._others.append(self.sequence + 1)
        return self.push(Clock(clock))

    def changes(self, last: int) -> int:
        """Count of changes among the numbers up to `last`."""
        return max(0, last - self._dropped - bisect.bisect_right(self._others, last))

    def take(self, message: Any) -> tuple[list[PartEnded], list[Any]]:
        """The pushes that have ended, and the messages to send."""
        if message.generation != self.generation:
            return [], []
        return HANDLERS[type(message)](self, message)

    def _welcome(self, welcome: Welcome) -> tuple[list[PartEnded], list[Any]]:
        self.slowest = welcome.slowest
        self.lost += max(0, self.changes(self.acknowledged) - self.changes(welcome.acknowledged))
        ended = self._safe_until(welcome.acknowledged)
        self.acknowledged = welcome.acknowledged
        self.sequence = max(self.sequence, self.acknowledged)  # of this worker's former client
        again = [self._push(number, change) for number, change in self.pushes.items()]
        self.ready = True
        if self.clock is not None:  # a head that went back to a snapshot has an old one
            again += self.tick(self.clock)[1]
        return ended, again + [self._pull(number) for number in self.pulls]

    def _ack(self, ack: Ack) -> tuple[list[PartEnded], list[Any]]:
        if ack.kept > self.kept:
            old = bisect.bisect_right(self._others, self.kept)  # the last two snapshots stay
            del self._others[:old]
            self._dropped += old
            self.kept = ack.kept
        self.acknowledged = max(self.acknowledged, ack.sequence)
        return self._safe_until(ack.sequence), []

    def _safe_until(self, sequence: int) -> list[PartEnded]:
        """End the changes up to a number, in the order of their numbers."""
        ended = []
        while self.pushes and (number := next(iter(self.pushes))) <= sequence:
            del self.pushes[number]
            ended.append(PartEnded(number))
        return ended

    def _refused(self, refused: Refused) -> tuple[list[PartEnded], list[Any]]:
        open_: dict[int, Any] = self.pushes if refused.push else self.pulls
        gone = open_.pop(refused.number, None)
        if gone is not None and refused.push:
            bisect.insort(self._others, refused.number)
        return [PartEnded(refused.number, why=refused.why)] if gone is not None else [], []

    def _answer(self, answer: Answer) -> tuple[list[PartEnded], list[Any]]:
        gone = self.pulls.pop(answer.number, None)
        return [PartEnded(answer.number, answer.value)] if gone is not None else [], []

    def _push(self, number: int, change: Any) -> Push:
        return Push(self.generation, self.worker, number, change)

    def _pull(self, number: int) -> Pull:
        return Pull(self.generation, self.worker, number, *self.pulls[number])


HANDLERS: dict[type, Callable[[Outbox, Any], tuple[list[PartEnded], list[Any]]]] = {
    Welcome: Outbox._welcome, Ack: Outbox._ack, Refused: Outbox._refused, Answer: Outbox._answer,
}  # fmt: skip
