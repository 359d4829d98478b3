"""One replica of a shard, without I/O: `take(message)` returns what is to be sent, to whom.

The head orders the changes, applies them, and forwards them to its copy in that order; what it acknowledges, and what
it answers, is on both.  It is chain replication (van Renesse and Schneider, OSDI 2004) of two, but for this: workers
talk to the head alone, which holds an acknowledgement or an answer until the copy has applied what it tells of.

    alone     no copy: applied is acknowledged
    asking    a new generation, or the link to the copy has ended (it is made again if the copy lives): nothing is
              acknowledged or answered
    filling   the copy gets the shard item by item, and each change; an item that comes later
              has it already; the head acknowledges alone
    full      acknowledged and answered is what both have

Frames of another generation are dropped if it is over, and kept if it is not installed here yet.
tests/training/server/test_shard.py walks through all interleavings of small cases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from hocket.errors import TransportError
from hocket.training.server.shards.clocks import Clocks
from hocket.training.server.wire import messages as say
from hocket.training.server.wire.messages import Ack, Answer, Clock, Forward, Pull, Push

HEAD, COPY = -1, -2
"""To whom: the other replica, or else a worker."""
Out = list[tuple[int, Any]]


class Store(Protocol):
    """The tables of a shard."""

    def check(self, change: Any) -> str:
        """Why this push or pull is refused, or "" """

    def apply(self, change: Any) -> None: ...
    def read(self, what: Any) -> Any:
        """The values that a pull asks for, which later changes do not touch."""

    def items(self) -> list[Any]: ...
    def dump(self, item: Any) -> Any:
        """The value in the form that `load` takes; later changes do not touch it."""

    def load(self, item: Any, value: Any) -> None: ...


class Shard:
    """`whole`: this replica holds the shard, from the beginning or from a snapshot."""

    def __init__(self, store: Store, clocks: Clocks, whole: bool) -> None:
        self.store, self.clocks, self.whole = store, clocks, whole
        self.generation, self.head, self.state = -1, False, "alone"
        self.order = self.safe = 0
        """Changes that were applied here; of these, how many may be acknowledged."""
        self.read = 0
        """Pulls that were answered."""
        self.applied: dict[int, int] = {}
        """Each worker's last change."""
        self.kept: dict[int, int] = {}
        self.pending: deque[tuple[int, Push]] = deque()
        """The changes behind `safe`, with their order."""
        self.waiting: list[Pull] = []
        """Pulls whose clock has not come."""
        self.held: deque[tuple[int, int, Answer]] = deque()
        """Answers that tell of changes behind `safe`."""
        self.unsent: list[Any] = []
        self._early: list[Any] = []

    @property
    def both(self) -> bool:
        """Is what this replica acknowledges, or has applied, on both?"""
        return self.state == "full" if self.head else self.whole

    def take(self, message: Any) -> Out:
        """The messages to send for it."""
        generation = getattr(message, "generation", self.generation)
        if generation != self.generation and type(message) is not say.Role:
            if generation > self.generation:
                self._early.append(message)
            return []
        return HANDLERS[type(message)](self, message)

    def acknowledged(self, worker: int) -> int:
        """The last change of this worker that may be acknowledged."""
        open_ = (push.sequence for _, push in self.pending if push.worker == worker)
        return next(open_, self.applied.get(worker, 0) + 1) - 1

    # --- a new view

    def _role(self, role: say.Role) -> Out:
        self.generation, self.head, self.state = role.generation, role.head, "asking" if role.copy else "alone"
        self.waiting, self.unsent = [], []
        self.held.clear()
        self.clocks.keep(role.workers, self.applied)
        out: Out = []
        if role.head:
            if role.copy:
                out = [(COPY, say.Begin(self.generation))]
            else:
                self._all_safe()
        early, self._early = self._early, []
        return out + [each for message in early for each in self.take(message)]

    def _all_safe(self) -> Out:
        out = [(push.worker, self._ack(push)) for _, push in self.pending]
        self.pending.clear()
        self.safe = self.order
        return out + self._release()

    def _gone(self, gone: say.Gone) -> Out:
        self.clocks.set(gone.worker, None)
        self.waiting = [pull for pull in self.waiting if pull.worker != gone.worker]
        return self._wake()

    def _cut(self, _: say.Cut) -> Out:
        if self.state != "alone":
            self.state = "asking"
        return []

    def _linked(self, _: say.Linked) -> Out:
        return [(COPY, say.Begin(self.generation))] if self.state == "asking" else []

    # --- the head, and workers

    def _hello(self, hello: say.Hello) -> Out:
        self.waiting = [pull for pull in self.waiting if pull.worker != hello.worker]  # they come again
        welcome = say.Welcome(self.generation, self.acknowledged(hello.worker), self.clocks.slowest)
        return [(hello.worker, welcome)] if self.head else []

    def _push(self, push: Push) -> Out:
        generation, worker, sequence, change = push
        if not self.head:
            return []
        if sequence <= self.applied.get(worker, 0):  # it has come before
            return [(worker, self._ack(push))] if sequence <= self.acknowledged(worker) else []
        is_clock = type(change) is Clock
        why = "" if is_clock else self.store.check(change)
        if why:
            return [(worker, say.Refused(generation, sequence, why, True))]
        self._apply(push)
        out: Out = []
        if self.state in ("alone", "filling"):
            self.safe = self.order
            out.append((worker, self._ack(push)))
        else:
            self.pending.append((self.order, push))
        if self.state == "full" or self.state == "filling" and not is_clock:
            out.append((COPY, Forward(generation, self.order, push)))
        return out + self._wake() if is_clock else out

    def _apply(self, push: Push) -> None:
        if type(push.change) is Clock:
            self.clocks.set(push.worker, push.change.clock)
        else:
            self.store.apply(push.change)
        self.applied[push.worker] = push.sequence
        self.order += 1

    def _ack(self, push: Push) -> Ack:
        return Ack(self.generation, push.sequence, self.kept.get(push.worker, 0))

    def _pull(self, pull: Pull) -> Out:
        if not self.head:
            return []
        why = self.store.check(pull.what)
        if why:
            return [(pull.worker, say.Refused(self.generation, pull.number, why, False))]
        if self.waiting or self.held:
            self._bounded(pull.worker)
        if not self.clocks.may_read(pull.clock):
            self.waiting.append(pull)
            return []
        return self._answer(pull)

    def _answer(self, pull: Pull) -> Out:
        self.read += 1
        answer = Answer(self.generation, pull.number, self.store.read(pull.what))
        if self.state == "asking" or self.safe < self.order:
            self.held.append((self.order, pull.worker, answer))
            return []
        return [(pull.worker, answer)]

    def _bounded(self, worker: int) -> None:
        """Raises ValueError: it has more pulls open than a client makes."""
        count = sum(each.worker == worker for each in self.waiting) + sum(each[1] == worker for each in self.held)
        if count >= say.HEARD:
            raise ValueError(f"worker {worker} has {count} pulls open on a shard; a client has {say.OPEN}")

    def _wake(self) -> Out:
        """A clock has gone on, or a worker is gone."""
        ready = [pull for pull in self.waiting if self.clocks.may_read(pull.clock)]
        self.waiting = [pull for pull in self.waiting if not self.clocks.may_read(pull.clock)]
        return [each for pull in ready for each in self._answer(pull)]

    def _release(self) -> Out:
        """The answers that tell of nothing but what is safe now."""
        out: Out = []
        while self.held and self.held[0][0] <= self.safe:
            _, worker, answer = self.held.popleft()
            out.append((worker, answer))
        return out

    def _kept(self, kept: say.Kept) -> Out:
        self.kept = dict(kept.applied)
        return []

    # --- the head, and its copy

    def _at(self, at: say.At) -> Out:
        if at.order is None:
            self.state, self.unsent = "filling", list(self.store.items())
            return self._all_safe() + self._fill()
        self.state = "full"
        return self._both_have(at.order) + [(COPY, Forward(self.generation, *each)) for each in self.pending]

    def _fill(self) -> Out:
        if self.unsent:
            item = self.unsent.pop()
            return [(COPY, say.Item(self.generation, item, self.store.dump(item)))]
        self.state = "full"
        return [(COPY, say.Filled(self.generation, self.order, dict(self.applied), dict(self.clocks.at)))]

    def _got(self, _: say.Got) -> Out:
        return self._fill() if self.state == "filling" else []

    def _applied(self, applied: say.Applied) -> Out:
        return self._both_have(applied.order)

    def _both_have(self, order: int) -> Out:
        out: Out = []
        while self.pending and self.pending[0][0] <= order:
            push = self.pending.popleft()[1]
            out.append((push.worker, self._ack(push)))
        self.safe = order
        return out + self._release()

    # --- the copy

    def _begin(self, begin: say.Begin) -> Out:
        return [(HEAD, say.At(self.generation, self.order if self.whole else None))]

    def _item(self, item: say.Item) -> Out:
        self.store.load(item.item, item.value)
        return [(HEAD, say.Got(self.generation))]

    def _filled(self, filled: say.Filled) -> Out:
        self.order, self.applied, self.whole = filled.order, dict(filled.applied), True
        self.clocks.at = dict(filled.clocks)
        return [(HEAD, say.Applied(self.generation, self.order))]

    def _forward(self, forward: Forward) -> Out:
        if not self.whole:
            self.store.apply(forward.push.change)
            return []
        if forward.order != self.order + 1:
            raise TransportError(f"change {forward.order} of a shard came to its copy, which has {self.order} changes")
        self._apply(forward.push)
        self.safe = self.order
        return [(HEAD, say.Applied(self.generation, self.order))]


HANDLERS: dict[type, Callable[[Shard, Any], Out]] = {
    say.Role: Shard._role, say.Gone: Shard._gone, say.Cut: Shard._cut, say.Linked: Shard._linked,
    say.Kept: Shard._kept,
    say.Hello: Shard._hello, Push: Shard._push, Pull: Shard._pull,
    say.At: Shard._at, say.Got: Shard._got, say.Applied: Shard._applied,
    say.Begin: Shard._begin, say.Item: Shard._item, say.Filled: Shard._filled, Forward: Shard._forward,
}  # fmt: skip
"""By what comes."""
