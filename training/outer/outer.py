"""`Outer`: every rank trains alone; now and then ranks average how far they came, and a rule makes one step of that.

    theta   inner parameters: the caller's arrays, changed by its own optimizer, and at the end of a round by `Outer`
    phi     outer parameters: the same on all ranks
    round   `every` steps after its last, a fragment's D = phi - theta is averaged; `delay` steps later the rule
            changes phi, and theta becomes mix theta + (1 - mix) phi

The methods are settings of this loop, each with its source, law and cost: local_sgd.py, diloco.py, streaming.py,
sparseloco.py, noloco.py.  Its parts: fragments.py, what is averaged together; roll.py, what ranks tell each other
first; loop.py, what is due when, and who finishes, without I/O; sending.py, how a vector is averaged; rules.py, what
the average does; members.py, who takes part; state.py, checkpoints.
"""

from __future__ import annotations

import math
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hocket.arguments import whole
from hocket.compression import Bucket
from hocket.compression.memory import finite, namespace, squared
from hocket.errors import ArgumentError
from hocket.extending import Aside, InOrder, in_order, on_host
from hocket.training.flat import Array, digest, flat
from hocket.training.outer import loop, roll, state
from hocket.training.outer.fragments import cut
from hocket.training.outer.members import Again, Fixed, crew
from hocket.training.outer.roll import RollRow
from hocket.training.outer.rounds import Flight, Report
from hocket.training.outer.rules import Rule
from hocket.training.outer.sending import Send, Sending
from hocket.training.outer.settings import check
from hocket.training.worker import Worker

FEW = 100
"""Rounds.  With momentum 0.9 fewer of them end worse than averages: 95.9 % instead of 98.2 % of digits after 55."""


class Outer(loop.Loop):
    """The loop.  Call `step()` after each inner step, on all ranks; `finish()` when the training ends.

    `members`: a communicator, or a crew.  `parameters`: float arrays by name, the same names and shapes on all ranks,
    changed in place, by -= and not by = (`hocket.torch.training.parameters(module)` makes them of a module).  They
    begin as rank 0's.  `every`: steps from a fragment's round to its next.  `by="count"`: `every` and `delay` are in
    what `step(count)` counts, samples or tokens.  `fragments`: how many, or lists of names.  `delay`: a round is
    averaged in a thread, and counts so many steps after it began; below every / fragments.  `mix`: what of theta stays.
    `send`: "fp16", or what `hocket.compression.Compressor` takes: "int8", "topk:0.01"; what that owes is multiplied by
    `decay` in each round.  `weight="count"`: a rank counts by what its `step(count)` have counted since its last round;
    then ranks may have different `every`.  `planned`: how many steps the training will have, to warn if momentum is too
    much for it.

    Memory: phi, the rule's vectors, and a fragment, where `Flat` says: on the GPU of the parameters, or in host memory.
    A round on a GPU waits for two numbers of it: are all finite, and a digest.  Errors: ArgumentError and MismatchError
    name what is wrong, on all ranks.  Cost of a round: 48 bytes to each rank, and an allreduce of the fragment.
    """

    kind = "outer/1"
    """The kind of states: the method, and the version of what they hold."""
    replicated = True
    """Is phi the same on all ranks?"""

    def __init__(
        self, members: Any, parameters: Any, *, rule: Rule, every: int, fragments: int | Sequence[Sequence[str]] = 1,
        delay: int = 0, mix: float = 0.0, send: Send = None, decay: float = 1.0, weight: str | None = None,
        by: str = "steps", planned: int | None = None,
    ) -> None:  # fmt: skip
        self.crew, self.flat, self.rule = crew(members), flat(parameters), rule
        self.fragments = cut(self.flat, fragments)
        self._order = [name for fragment in self.fragments for name in fragment.names]
        self.sending = Sending(send, decay)
        self.sending.check(self.flat.dtype)
        if self.sending.host or not isinstance(self.crew, Fixed):  # crews move states of the host's memory
            self.flat.stay()
        check(every, len(self.fragments), delay, mix, weight, by)
        super().__init__(len(self.fragments), every, delay, by, weight is not None)
        self.mix, self.weight = mix, weight
        if planned is not None:
            self._warn(whole(planned, "planned") * len(self.fragments) // every)
        self._calls = InOrder("a round")
        self.phi = self.flat.empty(self.flat.size)
        self.flat.read(self._order, self.phi)
        self.slots = {name: self.flat.zeros(self.flat.size) for name in rule.slots}
        self._here: Any = None
        """This round's ranks, and the communicator on which it is averaged."""
        self._exposed = 0.0
        """Seconds in which `step` waited for the round under way."""
        self._lanes: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """The thread's communicator of those ranks, for each that has had a round."""
        self._thread = Worker("hocket-outer") if delay else None
        self._aside = Aside(self.phi) if delay else None
        """The thread's stream, where vectors are on a GPU."""
        self._settings = digest(np.frombuffer(repr(self._said()).encode(), np.uint8))
        if isinstance(self.crew, Fixed):
            self._agree(self.crew.comm)
        self._calls.mark(self.phi)
        self._go_on(loop.Dropped())

    # ------------------------------------------------------------------------------------------ what users call

    def step(self, count: int = 1) -> Report | None:
        """After an inner step on `count` samples or tokens.  The round that has ended here, or None."""
        if whole(count, "count") > self.every and self.by == "count":
            raise ArgumentError(f"step({count}) counts more than every={self.every}: a round is due twice in it")
        ended = self._go_on(loop.Trained(count))
        return ended[-1] if ended else None

    def finish(self) -> list[Report]:
        """End the round under way, and average once more what was trained since; theta becomes phi.  All ranks call.

        A crew waits here for members that are late, once, for its `timeout`; who comes back in time finishes with them.
        """
        ended = self._go_on(loop.Finish())
        self.flat.held.check()
        self._come_back()
        self._warn(self.rounds)
        return ended

    @in_order("phi")
    def state_dict(self) -> dict[str, Any]:
        """The state that this rank must keep beside its parameters and its optimizer: arrays by name, and numbers."""
        return state.saved(self)

    @in_order("phi")
    def load_state_dict(self, saved: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from `state_dict()`: this rank's; or those of all ranks, in their order, of a job of any size."""
        state.load(self, saved)

    # ------------------------------------------------------------------------------------------ rounds

    def _go_on(self, event: Any) -> list[Report]:
        """Do what is due.  The rounds that have ended."""
        ended: list[Report] = []
        try:
            while not isinstance(act := self.take(event), loop.Rest):
                began = time.perf_counter()
                try:
                    with self._calls(self.phi), self.crew.attempt(self):
                        event = ACTS[type(act)](self, act)
                except Again:
                    event = loop.Dropped()
                self._exposed += time.perf_counter() - began
                if isinstance(event, loop.Landed):
                    ended.append(self._report(event.flight))
            return ended
        finally:
            self.rest()

    def _meet(self, act: loop.Meet) -> loop.Met:
        """Newcomers come in, and who is behind takes the others' state."""
        self.crew.boundary(self)
        return loop.Met(getattr(self.crew, "words", ()))

    def _come(self, act: loop.Come) -> loop.Gathered:
        comm = self.crew.present()
        self._here = comm, comm if self._thread is None else self._apart(comm)
        words = getattr(self.crew, "words", None)
        if words is None:  # no crew, which has told it already
            words = comm.share(self.word, "finish()") if self._ends else []
        return loop.Gathered(words)

    def _begin(self, act: loop.Begin) -> loop.Begun:
        """In this thread, or in the loop's own, so that the caller can go on."""
        comm, lane = self._here
        fragment = self.fragments[act.fragment]
        phi = self.phi[fragment.span]
        gradient = self.flat.empty(len(phi))
        self.flat.read(fragment.names, gradient)
        namespace(phi).subtract(phi, gradient, out=gradient)
        flight = Flight(act.number, fragment, act.due, gradient, act.weight, act.at, self._members(comm))
        flight.wrong = self.flat.held.wrong()
        if self._thread is None or self._aside is None:
            self._carry(comm, flight)
        else:
            self._aside.behind()
            flight.ended = self._thread.submit(self._carry_aside, self._aside, lane, flight, comm=lane)
        return loop.Begun(flight)

    def _land(self, act: loop.Land) -> loop.Landed:
        """The end of a round: phi and theta change."""
        flight = act.flight
        if flight.ended is not None:
            flight.ended.result()
            if self._aside is not None:
                self._aside.join()
        names, phi = flight.fragment.names, self.phi[flight.fragment.span]
        slots = {name: vector[flight.fragment.span] for name, vector in self.slots.items()}
        self.rule.apply(phi, flight.gradient, slots)
        self.flat.write(names, self._mixed(names, phi))
        return loop.Landed(flight)

    def _report(self, flight: Flight) -> Report:
        exposed, self._exposed = self._exposed, 0.0
        return Report(
            self.steps, flight.fragment.number, flight.members, flight.weights, tuple(self.crew.left_out),
            flight.bytes, flight.seconds, exposed,
        )  # fmt: skip

    def _mixed(self, names: Sequence[str], phi: Array) -> Array:
        """The new theta."""
        if not self.mix:
            return phi
        theta = self.flat.empty(len(phi))
        self.flat.read(names, theta)
        theta *= float(self.mix)
        theta += float(1 - self.mix) * phi
        return theta

    def _carry_aside(self, aside: Aside, comm: Any, flight: Flight) -> None:
        with aside.work():
            self._carry(comm, flight)

    def _carry(self, comm: Any, flight: Flight) -> None:
        """Tell the others this rank's row, and average."""
        began = time.perf_counter()
        rows = [RollRow(*row) for row in self._rows(comm, flight, self._row(comm, flight).array()).tolist()]
        roll.check(rows, flight.members, flight.fragment.names, self.replicated, flight.wrong)
        total = sum(row.weight for row in rows)
        flight.weights = tuple(row.weight / total for row in rows)
        own = flight.weight * len(rows) / total
        if own != 1:
            flight.gradient *= float(own)
        flight.bytes = self._average(comm, flight, any(row.fresh for row in rows))
        flight.seconds = time.perf_counter() - began

    def _row(self, comm: Any, flight: Flight) -> RollRow:
        names, phi = flight.fragment.names, self.phi[flight.fragment.span]
        broken = roll.CHANGED if flight.wrong else -1
        vector = flight.gradient
        if not flight.wrong and not (math.isfinite(squared(vector)) if on_host(vector) else finite(vector)):
            parts = self.flat.parts(names, vector)
            broken = next((i for i, part in enumerate(parts) if not finite(part)), -1)
        hashed = digest(phi) if self.replicated else 0
        return RollRow(flight.number, flight.weight, broken, hashed, self.sending.fresh(comm), self._settings)

    def _rows(self, comm: Any, flight: Flight, row: Array) -> Array:
        """All members' rows.  A method that knows no collective overrides this, `_average`, and `_members`."""
        return comm.allgather(row)

    def _average(self, comm: Any, flight: Flight, fresh: bool) -> int:
        """Make `flight.gradient` the average of all members', which are weighted already.  Bytes on the wire."""
        parts = self.flat.parts(flight.fragment.names, flight.gradient)
        return self.sending.average(comm, Bucket(flight.gradient, parts, flight.fragment.names), fresh)

    def _members(self, comm: Any) -> tuple[Any, ...]:
        """The members, in the order of the rows."""
        return tuple(self.crew.comm.members.index(member) for member in comm.members)

    def _apart(self, comm: Any) -> Any:
        """A communicator of the same ranks for the loop's thread.  Collective, the first time."""
        if comm not in self._lanes:
            self._lanes[comm] = comm.dup()
        return self._lanes[comm]

    # ------------------------------------------------------------------------------------------ who takes part

    @property
    def made(self) -> dict[str, Any]:
        """The settings, as `Replica` has them."""
        shapes = {f"parameter {name!r}": [*shape] for name, shape in self.flat.shapes.items()}
        return {name: value for name, value in self._said().items() if name != "layout"} | shapes

    def _said(self) -> dict[str, Any]:
        """Settings that have to be the same on all ranks."""
        layout = digest(np.frombuffer(repr([*self.flat.shapes.items()]).encode(), np.uint8))
        return {
            "method": self.kind, "layout": layout, "dtype": str(self.flat.dtype), "rule": repr(self.rule),
            "place of vectors (GPU or host)": "host" if self.flat.like is None else "GPU",
            "every": self.every if self.weight is None else "by weight", "by": self.by, "delay": self.delay,
            "mix": self.mix, "weight": self.weight, "send": self.sending.name, "decay": self.sending.decay,
            "fragments": [list(each.names) for each in self.fragments] if len(self.fragments) > 1 else 1,
        }  # fmt: skip

    def _agree(self, comm: Any) -> None:
        """Compare the settings of all ranks, and begin as rank 0."""
        rows = roll.agree(comm, {**self._said(), "start": digest(self.phi)}, self.flat.shapes)
        if len({row["start"] for row in rows}) > 1:
            comm.broadcast(self.phi, 0)
            self.flat.write(self._order, self.phi)
        lanes = [comm, self._apart(comm)] if self.delay else [comm]  # now, as it waits for all
        for lane in lanes if self.flat.like is not None else ():
            lane.allreduce(self.flat.zeros(1))  # tries what the GPUs can do, which messages do not

    def arrays(self) -> dict[str, Array]:
        return {"phi": self.phi, **self.slots}

    def load(self, numbers: dict[str, Any]) -> None:
        super().load(numbers)
        self._come_back()

    @in_order("phi")
    def _come_back(self) -> None:
        """Theta becomes phi."""
        self.flat.write(self._order, self.phi)

    def _warn(self, rounds: int) -> None:
        """Momentum 0.9 needs many rounds."""
        rounds, momentum = rounds // len(self.fragments), getattr(self.rule, "momentum", 0.0)
        if momentum >= 0.9 and rounds < FEW:
            warnings.warn(
                f"outer momentum {momentum:g} in a training of {rounds} rounds: below {FEW} it ends worse than without "
                "momentum; take momentum=0.5 or less, or a smaller every", stacklevel=3,
            )  # fmt: skip


ACTS: dict[type, Callable[[Outer, Any], Any]] = {
    loop.Meet: Outer._meet, loop.Come: Outer._come, loop.Begin: Outer._begin, loop.Land: Outer._land,
}  # fmt: skip
