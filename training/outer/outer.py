"""`Outer`: every rank trains alone; now and then ranks average how far they came, and a rule makes one step of that.

    theta   inner parameters: the caller's arrays, changed by its own optimizer, and at the end of a round by `Outer`
    phi     outer parameters: the same on all ranks
    round   `every` steps after its last, a fragment's D = phi - theta is averaged; `delay` steps later the rule
            changes phi, and theta becomes mix theta + (1 - mix) phi

The methods are settings of this loop, each with its source, law and cost: local_sgd.py, diloco.py, streaming.py,
sparseloco.py, noloco.py.  Its parts: fragments.py, what is averaged together; roll.py, what ranks tell each other
first; sending.py, how a vector is averaged; rules.py, what the average does; members.py, who takes part; state.py,
checkpoints.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from hocket.arguments import whole
from hocket.compression import Bucket
from hocket.errors import ArgumentError
from hocket.training.flat import Array, digest, flat
from hocket.training.outer import roll, state
from hocket.training.outer.fragments import Fragment, cut
from hocket.training.outer.members import Again, Fixed, crew
from hocket.training.outer.roll import Row
from hocket.training.outer.rounds import Flight, Report
from hocket.training.outer.rules import Rule
from hocket.training.outer.sending import Send, Sending
from hocket.training.outer.settings import check

FEW = 100
"""Rounds.  With momentum 0.9 fewer of them end worse than averages: 95.9 % instead of 98.2 % of digits after 55."""
Made = TypeVar("Made")


class Outer:
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

    Memory: phi, the rule's vectors, and a fragment.  Errors: ArgumentError and MismatchError name what is wrong, on
    all ranks.  Cost of a round: 48 bytes to each rank, and an allreduce of the fragment.
    """

    kind = "outer/1"
    """Of states: the method, and the version of what they hold."""
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
        check(every, len(self.fragments), delay, mix, weight, by)
        self.every, self.delay, self.mix, self.weight, self.by = every, delay, mix, weight, by
        if planned is not None:
            self._warn(whole(planned, "planned") * len(self.fragments) // every)
        self.phi = np.empty(self.flat.size, self.flat.dtype)
        self.flat.read(self._order, self.phi)
        self.slots = {name: np.zeros_like(self.phi) for name in rule.slots}
        self.steps = self.counts = self.rounds = 0
        self._since = [0] * len(self.fragments)
        self._steps_at = [0] * len(self.fragments)
        self._flight: Flight | None = None
        self._lane: tuple[Any, Any] = (None, None)
        self._thread = ThreadPoolExecutor(1, "hocket-outer") if delay else None
        self._settings = digest(np.frombuffer(repr(self._said()).encode(), np.uint8))
        if isinstance(self.crew, Fixed):
            self._agree(self.crew.comm)
        while self._attempt(self._meet) is None:
            pass
        self._met = True  # a crew's newcomer has come in before a round of the others, and this may be due here, too
        self._go_on()

    # ------------------------------------------------------------------------------------------ what users call

    def step(self, count: int = 1) -> Report | None:
        """After an inner step on `count` samples or tokens.  The round that has ended here, or None."""
        if self.by == "count" and whole(count, "count") > self.every:
            raise ArgumentError(f"step({count}) counts more than every={self.every}: a round is due twice in it")
        self.steps, self.counts = self.steps + 1, self.counts + whole(count, "count")
        return self._go_on()

    def finish(self) -> list[Report]:
        """End the round under way, and average once more what was trained since; theta becomes phi.  All ranks call."""
        ended = []
        if self._flight is not None and (report := self._attempt(lambda: self._land(self._flight))):
            ended = [report]
        for _ in self.fragments:
            reports = None
            while reports is None:
                reports = self._attempt(self._last_round)
            ended += reports
        self.flat.held.check()
        self.flat.write(self._order, self.phi)
        self._warn(self.rounds)
        return ended

    def state_dict(self) -> dict[str, Any]:
        """What this rank must keep beside its parameters and its optimizer: arrays by name, and numbers."""
        return state.saved(self)

    def load_state_dict(self, saved: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from `state_dict()`: this rank's; or those of all ranks, in their order, of a job of any size."""
        state.load(self, saved)

    # ------------------------------------------------------------------------------------------ rounds

    @property
    def now(self) -> int:
        """The time by which rounds are due."""
        return self.steps if self.by == "steps" else self.counts

    def due(self, number: int) -> int:
        """When round `number`, 1, 2, ..., begins."""
        return number * self.every // len(self.fragments)

    def _go_on(self) -> Report | None:
        """Begin and end what is due."""
        report = None
        while True:
            if self._flight is not None:
                if self.now < self._flight.due + self.delay:
                    return report
                report = self._attempt(lambda: self._land(self._flight)) or report
            elif self.now < self.due(self.rounds + 1):
                return report
            elif self.delay:
                self._flight = self._attempt(self._launch)
            else:
                report = self._attempt(self._whole_round) or report

    def _attempt(self, act: Callable[[], Made]) -> Made | None:
        """What it makes; None: it was lost with a rank, and the others go on."""
        try:
            with self.crew.attempt(self):
                return act()
        except Again:
            self._flight = None
            return None

    def _whole_round(self) -> Report:
        """Begin a round and end it."""
        return self._land(self._launch(wait=True))

    def _last_round(self) -> list[Report]:
        """If anybody has trained the next fragment since its last round."""
        fragment = self.fragments[self.rounds % len(self.fragments)]
        return [self._whole_round()] if self._somebody_trained(fragment) else []

    def _launch(self, wait: bool = False) -> Flight:
        """Begin the next round: in this thread, or in the loop's own, so that the caller can go on."""
        began = time.perf_counter()
        if not self._met:
            self._meet()
        self._met = False
        comm = self.crew.present()
        fragment = self.fragments[self.rounds % len(self.fragments)]
        phi = self.phi[fragment.span]
        gradient = np.empty_like(phi)
        self.flat.read(fragment.names, gradient)
        np.subtract(phi, gradient, out=gradient)
        weight = self.counts - self._since[fragment.number]
        if self.weight is None:
            weight = self.steps > self._steps_at[fragment.number]
        number, at = self.rounds + 1, (self.counts, self.steps)
        flight = Flight(number, fragment, self.due(number), gradient, float(weight), at, self._members(comm))
        flight.wrong = self.flat.held.wrong()
        if wait or self._thread is None:
            self._carry(comm, flight)
        else:
            flight.ended = self._thread.submit(self._carry, self._apart(comm), flight)
        flight.exposed = time.perf_counter() - began
        return flight

    def _land(self, flight: Flight | None) -> Report:
        """End a round: phi and theta change."""
        assert flight is not None
        began, self._flight = time.perf_counter(), None
        if flight.ended is not None:
            flight.ended.result()
        self.rounds, which = flight.number, flight.fragment.number
        self._since[which], self._steps_at[which] = flight.at
        names, phi = flight.fragment.names, self.phi[flight.fragment.span]
        slots = {name: vector[flight.fragment.span] for name, vector in self.slots.items()}
        self.rule.apply(phi, flight.gradient, slots)
        self.flat.write(names, self._mixed(names, phi))
        exposed = flight.exposed + time.perf_counter() - began
        return Report(
            self.steps, flight.fragment.number, flight.members, flight.weights, tuple(self.crew.left_out),
            flight.bytes, flight.seconds, exposed,
        )  # fmt: skip

    def _mixed(self, names: Sequence[str], phi: Array) -> Array:
        """What theta becomes."""
        if not self.mix:
            return phi
        theta = np.empty_like(phi)
        self.flat.read(names, theta)
        theta *= theta.dtype.type(self.mix)
        theta += theta.dtype.type(1 - self.mix) * phi
        return theta

    def _carry(self, comm: Any, flight: Flight) -> None:
        """Tell the others this rank's row, and average."""
        began = time.perf_counter()
        rows = [Row(*row) for row in self._rows(comm, flight, self._row(comm, flight).array()).tolist()]
        roll.check(rows, flight.members, flight.fragment.names, self.replicated, flight.wrong)
        total = sum(row.weight for row in rows)
        flight.weights = tuple(row.weight / total for row in rows)
        own = flight.weight * len(rows) / total
        if own != 1:
            flight.gradient *= flight.gradient.dtype.type(own)
        flight.bytes = self._average(comm, flight, any(row.fresh for row in rows))
        flight.seconds = time.perf_counter() - began

    def _row(self, comm: Any, flight: Flight) -> Row:
        names, phi = flight.fragment.names, self.phi[flight.fragment.span]
        broken = roll.CHANGED if flight.wrong else -1
        if not flight.wrong and not np.isfinite(np.dot(flight.gradient, flight.gradient)):
            parts = self.flat.parts(names, flight.gradient)
            broken = next((i for i, part in enumerate(parts) if not np.isfinite(part).all()), -1)
        hashed = digest(phi) if self.replicated else 0
        return Row(flight.number, flight.weight, broken, hashed, self.sending.fresh(comm), self._settings)

    def _rows(self, comm: Any, flight: Flight, row: Array) -> Array:
        """All members' rows.  A method that knows no collective overrides this, `_average`, and `_members`."""
        return comm.allgather(row)  # type: ignore[no-any-return]

    def _average(self, comm: Any, flight: Flight, fresh: bool) -> int:
        """Make `flight.gradient` the average of all members', which are weighted already.  Bytes on the wire."""
        parts = self.flat.parts(flight.fragment.names, flight.gradient)
        return self.sending.average(comm, Bucket(flight.gradient, parts, flight.fragment.names), fresh)

    def _members(self, comm: Any) -> tuple[Any, ...]:
        """Who they are, in the order of the rows."""
        return tuple(self.crew.comm.members.index(member) for member in comm.members)

    def _somebody_trained(self, fragment: Fragment) -> bool:
        """Since the fragment's last round.  Collective."""
        trained = np.array([self.steps > self._steps_at[fragment.number]])
        return bool(self.crew.comm.allreduce(trained, "max")[0])

    def _apart(self, comm: Any) -> Any:
        """A communicator of the same ranks for the loop's thread."""
        if self._lane[0] is not comm:
            self._lane = (comm, comm.dup())
        return self._lane[1]

    # ------------------------------------------------------------------------------------------ who takes part

    def _meet(self) -> bool:
        """Come to the crew's boundary: newcomers come in, and who is behind takes the others' state."""
        self.crew.boundary(self)
        return True

    def _said(self) -> dict[str, Any]:
        """What has to be the same on all ranks."""
        layout = digest(np.frombuffer(repr([*self.flat.shapes.items()]).encode(), np.uint8))
        return {
            "method": self.kind, "layout": layout, "dtype": str(self.flat.dtype), "rule": repr(self.rule),
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
        if self.delay:
            self._apart(comm)  # now, as it waits for all

    @property
    def position(self) -> int:
        """As `Replica` has it."""
        return self.rounds

    def arrays(self) -> dict[str, Array]:
        return {"phi": self.phi, **self.slots}

    def numbers(self) -> dict[str, Any]:
        return {"steps": self.steps, "counts": self.counts, "rounds": self.rounds}

    def load(self, numbers: dict[str, Any]) -> None:
        self.steps, self.counts, self.rounds = (numbers[name] for name in ("steps", "counts", "rounds"))
        self._since, self._steps_at = [self.counts] * len(self._since), [self.steps] * len(self._since)
        self._flight = None
        self.flat.write(self._order, self.phi)

    def _warn(self, rounds: int) -> None:
        """Momentum 0.9 needs many rounds."""
        rounds, momentum = rounds // len(self.fragments), getattr(self.rule, "momentum", 0.0)
        if momentum >= 0.9 and rounds < FEW:
            warnings.warn(
                f"outer momentum {momentum:g} in a training of {rounds} rounds: below {FEW} it ends worse than without "
                "momentum; take momentum=0.5 or less, or a smaller every", stacklevel=3,
            )  # fmt: skip
