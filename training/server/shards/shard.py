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
from hocket.training.server.shards.rounds import Round
from hocket.training.server.wire import messages as say
from hocket.training.server.wire.messages import SELF, Ack, Answer, Clock, Forward, HeadStep, Pull, Push

HEAD, COPY = -1, -2
"""To whom: the other replica, or else a worker."""
TWICE = (
    "this worker has pushed to it since its last step, which is one a clock (mean=True): add gradients up, or tick() "
    "and pull before"
)
Out = list[tuple[int, Any]]


class Store(Protocol):
    """The tables of a shard."""

    def check(self, change: Any) -> str:
        """Why this push or pull is refused, or "" """

    def apply(self, change: Any) -> None: ...
    def round(self, change: Any) -> tuple[Any, Round] | None:
        """The item that a push or pull is for, and its round, if its optimizer steps once a clock."""

    def rounds(self) -> list[tuple[Any, Round]]:
        """All of those, by item."""

    def step(self, item: Any, clock: int, workers: int) -> None: ...
    def read(self, what: Any) -> Any:
        """The values that a pull asks for, which later changes do not touch."""

    def items(self) -> list[Any]: ...
    def dump(self, item: Any) -> Any:
        """The value in the form that `load` takes; later changes do not touch it."""

    def load(self, item: Any, value: Any) -> None: ...
    def clear(self) -> None:
        """All items come."""


class Shard:
    """`whole`: this replica holds the shard, from the beginning or from a snapshot."""

    def __init__(self, store: Store, clocks: Clocks, whole: bool) -> None:
        self.store, self.clocks, self.whole = store, clocks, whole
        self.paced = bool(store.rounds())
        """Does a slice step once a clock?"""
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
            rounds = self.store.rounds()
            if not any(worker in self.applied for worker in role.workers):
                out += self._again(rounds)
            out += self._steps(rounds)
        early, self._early = self._early, []
        return out + [each for message in early for each in self.take(message)]

    def _all_safe(self) -> Out:
        out: Out = [(push.worker, self._ack(push)) for _, push in self.pending if push.worker != SELF]
        self.pending.clear()
        self.safe = self.order
        return out + self._release()

    def _gone(self, gone: say.Gone) -> Out:
        self.clocks.set(gone.worker, None)
        self.waiting = [pull for pull in self.waiting if pull.worker != gone.worker]
        return self._wake()

    def _cut(self, _: say.Unlinked) -> Out:
        if self.state != "alone":
            self.state = "asking"
        return []

    def _linked(self, _: say.Linked) -> Out:
        return [(COPY, say.Begin(self.generation))] if self.state == "asking" else []

    # --- the head, and workers

    def _hello(self, hello: say.Hello) -> Out:
        self.waiting = [pull for pull in self.waiting if pull.worker != hello.worker]  # they come again
        done = [round_.done for _, round_ in self.store.rounds()]  # a clock that has stepped takes no more pushes
        welcome = say.Welcome(self.generation, self.acknowledged(hello.worker), max([self.clocks.slowest, *done]))
        return [(hello.worker, welcome)] if self.head else []

    def _push(self, push: Push) -> Out:
        generation, worker, sequence, change = push
        if not self.head:
            return []
        if sequence <= self.applied.get(worker, 0):  # it has come before
            return [(worker, self._ack(push))] if sequence <= self.acknowledged(worker) else []
        is_clock = type(change) is Clock
        round_ = None
        if not is_clock:
            why = self.store.check(change)
            if self.paced and not why:
                round_ = self.store.round(change)
                if round_ is not None and worker in round_[1].given:
                    why = TWICE
            if why:
                return [(worker, say.Refused(generation, sequence, why, True))]
        out = self._ordered(push)
        if is_clock:
            out += self._wake()
        elif round_ is not None:
            out += self._steps([round_])
        return out

    def _ordered(self, push: Push) -> Out:
        """Make this the next change."""
        self._apply(push)
        out: Out = []
        if self.state in ("alone", "filling"):
            self.safe = self.order
            if push.worker != SELF:
                out.append((push.worker, self._ack(push)))
        else:
            self.pending.append((self.order, push))
        if self.state == "full" or self.state == "filling" and type(push.change) is not Clock:
            out.append((COPY, Forward(self.generation, self.order, push)))
        return out

    def _again(self, rounds: list[tuple[Any, Round]]) -> Out:
        """Other workers go on, whose clocks begin anew: so do rounds, without what was pushed and has not stepped."""
        at = self.clocks.slowest
        begun = [(item, round_) for item, round_ in rounds if round_.done > at or round_.given]
        changes = [Push(self.generation, SELF, at, HeadStep(item, at, 0)) for item, _ in begun]
        return [each for change in changes for each in self._ordered(change)]

    def _steps(self, rounds: list[tuple[Any, Round]]) -> Out:
        """The head's changes: slices step for which nobody's part is missing."""
        out: Out = []
        for item, round_ in rounds:
            clock = round_.next(self.clocks.at)
            if clock > round_.done:
                step = HeadStep(item, clock, round_.workers(self.clocks.at))
                out += self._ordered(Push(self.generation, SELF, clock, step))
                out += self._answers(item)
        return out

    def _apply(self, push: Push) -> None:
        change = push.change
        if type(change) is Clock:
            if change.clock is None or push.worker not in self.applied:
                self._comes_or_leaves(push.worker, change.clock)
            self.clocks.set(push.worker, change.clock)
        else:
            self._change(push)
        if push.worker != SELF:
            self.applied[push.worker] = push.sequence
        self.order += 1

    def _comes_or_leaves(self, worker: int, clock: int | None) -> None:
        """All rounds hear that a worker begins at this clock; None: that it leaves."""
        rounds = self.store.rounds()
        for _, round_ in rounds:
            if clock is None:
                round_.leaves(worker, self.clocks.at.get(worker, 0))
            else:
                round_.comes(worker, clock)
        if rounds and self.state == "filling":
            self.unsent = list(self.store.items())  # the copy hears no clocks yet: what it has comes once more

    def _change(self, push: Push) -> None:
        change = push.change
        if type(change) is HeadStep:
            self.store.step(change.item, change.clock, change.workers)
            return
        self.store.apply(change)
        round_ = self.store.round(change) if self.paced else None
        if round_ is not None:
            round_[1].given.add(push.worker)

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
        if not self._may_read(pull):
            self.waiting.append(pull)
            return []
        return self._answer(pull)

    def _may_read(self, pull: Pull) -> bool:
        round_ = self.store.round(pull.what) if self.paced else None
        return self.clocks.may_read(pull.clock) if round_ is None else round_[1].done >= pull.clock

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
        return (self._steps(self.store.rounds()) if self.head else []) + self._answers()

    def _answers(self, item: Any = None) -> Out:
        """To the waiting pulls that may be answered now; to those of this item alone, which has stepped."""
        ready: list[Pull] = []
        still: list[Pull] = []
        for pull in self.waiting:
            (ready if self._waits_for(item, pull) and self._may_read(pull) else still).append(pull)
        self.waiting = still
        return [each for pull in ready for each in self._answer(pull)]

    def _waits_for(self, item: Any, pull: Pull) -> bool:
        round_ = None if item is None else self.store.round(pull.what)
        return item is None or round_ is not None and round_[0] == item

    def _release(self) -> Out:
        """The answers that tell of nothing but what is safe now."""
        out: Out = []
        while self.held and self.held[0][0] <= self.safe:
            _, worker, answer = self.held.popleft()
            out.append((worker, answer))
        return out

    def _kept(self, kept: say.Saved) -> Out:
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
            if push.worker != SELF:
                out.append((push.worker, self._ack(push)))
        self.safe = order
        return out + self._release()

    # --- the copy

    def _begin(self, begin: say.Begin) -> Out:
        if not self.whole:
            self.store.clear()
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
            self._change(forward.push)
            return []
        if forward.order != self.order + 1:
            raise TransportError(f"change {forward.order} of a shard came to its copy, which has {self.order} changes")
        self._apply(forward.push)
        self.safe = self.order
        return [(HEAD, say.Applied(self.generation, self.order))]


HANDLERS: dict[type, Callable[[Shard, Any], Out]] = {
    say.Role: Shard._role, say.Gone: Shard._gone, say.Unlinked: Shard._cut, say.Linked: Shard._linked,
    say.Saved: Shard._kept,
    say.Hello: Shard._hello, Push: Shard._push, Pull: Shard._pull,
    say.At: Shard._at, say.Got: Shard._got, say.Applied: Shard._applied,
    say.Begin: Shard._begin, say.Item: Shard._item, say.Filled: Shard._filled, Forward: Shard._forward,
}  # fmt: skip
"""By what comes."""
