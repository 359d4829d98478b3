"""The outer loop without I/O: `take(event)` gives what a rank does next, by what its program and the others have done.

    what is due          when
    Land, a round ends   `delay` steps after it began; at once where members finish
    Meet, then Come      a round begins: `every` steps after its fragment's last; at once where members finish
    Rest                 nothing is due: the program goes on.  Where members finish: nobody has trained any more

A loss drops the round that was to land.  What is due is due again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# --- events


class Trained(NamedTuple):
    """The program has trained on so many samples or tokens."""

    trained: int


class Finish(NamedTuple):
    """The program ends."""


class Met(NamedTuple):
    """All have come to the boundary, and hold one state.  `words`: `Loop.word` of each, where a crew has told them."""

    words: Sequence[Any]


class Gathered(NamedTuple):
    """Some have come to this round."""

    words: Sequence[Any]


class Begun(NamedTuple):
    """The round is under way.  `flight` has its number, and when it was due and began."""

    flight: Any


class Landed(NamedTuple):
    """The round counts."""

    flight: Any


class Dropped(NamedTuple):
    """An act was lost with a rank; the others go on."""


# --- instructions


class Meet(NamedTuple):
    pass


class Come(NamedTuple):
    pass


class Begin(NamedTuple):
    number: int
    fragment: int
    due: int
    weight: float
    at: tuple[int, int]
    """Counts and steps now."""


class Land(NamedTuple):
    """Add up the round: `Landed` at the end; where a member is lost, the round is dropped."""

    flight: Any


class Rest(NamedTuple):
    pass


class Loop:
    """`every`, `delay`: in steps, or in what these count (`by="count"`)."""

    def __init__(self, fragments: int, every: int, delay: int, by: str, weighted: bool) -> None:
        self.every, self.delay, self.by, self._weighted = every, delay, by, weighted
        self.steps = self.counts = self.rounds = 0
        self._since, self._steps_at = [0] * fragments, [0] * fragments
        """Counts and steps at each fragment's last round."""
        self._flight: Any = None
        self._begun = self._met = False
        """Has it met the others?  Is this still that boundary?"""
        self._ends = self._followed = self.patient = False
        """Do members finish?  Has this rank finished with them, in `step`?  Does it wait for who is late?"""
        self._extra = 0
        """Rounds that `finish` has made before they were due: the others stay due when they were."""

    def take(self, event: Any) -> Any:
        return TABLE[type(event)](self, event)

    def rest(self) -> Rest:
        """The program goes on; also where an act has failed."""
        self._ends = self.patient = False
        return Rest()

    @property
    def now(self) -> int:
        """The time by which rounds are due."""
        return self.steps if self.by == "steps" else self.counts

    def due(self, number: int) -> int:
        """When round `number`, 1, 2, ..., begins."""
        return number * self.every // len(self._since)

    @property
    def word(self) -> list[bool]:
        """This rank's word at a moment of a crew: does it finish, and has it trained?"""
        return [self._ends, self._trained]

    @property
    def _next(self) -> int:
        """When the next round is due."""
        return self.due(self.rounds + 1 - self._extra)

    @property
    def _fragment(self) -> int:
        """The next round's."""
        return self.rounds % len(self._since)

    @property
    def _trained(self) -> bool:
        """Has this rank trained since the next fragment's last round?  Then that has the longest time behind it."""
        return self.steps > self._steps_at[self._fragment]

    def _steps(self, event: Trained) -> Any:
        self.steps, self.counts, self._followed = self.steps + 1, self.counts + event.trained, False
        return self._what_is_due()

    def _finishes(self, event: Finish) -> Any:
        followed, self._followed = self._followed, False
        if followed:
            return self.rest()
        self._ends = self.patient = True
        return self._what_is_due()

    def _what_is_due(self) -> Any:
        if (flight := self._flight) is not None:
            if not self._ends and self.now < flight.due + self.delay:
                return self.rest()
            self._flight = None
            return Land(flight)
        if self._begun and self.now < self._next and not self._ends:
            return self.rest()
        if not self._met:
            return Meet()
        self._met = False
        return Come()

    def _meets(self, event: Met) -> Any:
        """A newcomer comes in before a round of the others, and this may be due here, too."""
        self.patient, self._met = False, True
        self._follow(event.words)
        if self._begun:
            self._met = False
            return Come()
        self._begun = True
        return self._what_is_due()

    def _gathers(self, event: Gathered) -> Any:
        """Nothing is left where some of those who are here finish, and none has trained since the fragment's round."""
        self._follow(event.words)
        self._ends = self._ends and any(trained for _, trained in event.words)
        if event.words and not self._ends and any(ends for ends, _ in event.words):
            return self._what_is_due()
        weight = self.counts - self._since[self._fragment] if self._weighted else self._trained
        at = self.counts, self.steps
        return Begin(self.rounds + 1, self._fragment, self._next, float(weight), at)

    def _follow(self, words: Sequence[Any]) -> None:
        """If others finish, so does this rank: a newcomer, or one that comes back."""
        if not self._ends and any(ends for ends, _ in words):
            self._ends = self._followed = True

    def _begins(self, event: Begun) -> Any:
        self._flight = event.flight
        return self._what_is_due()

    def _lands(self, event: Landed) -> Any:
        flight, which = event.flight, self._fragment
        self.rounds = flight.number
        self._extra += self.now < flight.due
        self._since[which], self._steps_at[which] = flight.at
        return self._what_is_due()

    def _drops(self, event: Dropped) -> Any:
        return self._what_is_due()

    # --- the state, as it moves between ranks

    @property
    def position(self) -> int:
        """The position, as `Replica` has it."""
        return self.rounds

    def numbers(self) -> dict[str, Any]:
        return {"steps": self.steps, "counts": self.counts, "rounds": self.rounds, "extra": self._extra}

    def load(self, numbers: dict[str, Any]) -> None:
        self.steps, self.counts, self.rounds, self._extra = (numbers[name] for name in
                                                             ("steps", "counts", "rounds", "extra"))  # fmt: skip
        self._since, self._steps_at = [self.counts] * len(self._since), [self.steps] * len(self._since)


TABLE: dict[type, Callable[[Loop, Any], Any]] = {
    Trained: Loop._steps, Finish: Loop._finishes, Met: Loop._meets, Gathered: Loop._gathers, Begun: Loop._begins,
    Landed: Loop._lands, Dropped: Loop._drops,
}  # fmt: skip
"""By event.  An error is no event: it is raised, and the program may go on."""
