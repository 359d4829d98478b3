"""A member's part in the views without I/O: `take(event)` gives what it does next.

    state   waits for                     what comes, and what follows
    SAYS    each member's word            Words: Install, or Raise.  Fails: Renew, or Raise
    RENEWS  all members that live         Renewed: Say.  Fails: Renew without the silent, or Raise
    HOLDS   a loss, or a newcomer         Changed: Renew

The job's first members wait for all until they have a view; nobody else waits for anybody for longer than the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.errors import Error, MismatchError, PeerLostError, TimeoutError
from hocket.training.crew.machine import Fails, Note, Raise
from hocket.training.server.views import View, decide, read, refused

SAYS, RENEWS, HOLDS = "says", "renews", "holds"


class Words(NamedTuple):
    """The words of each member of this generation; `previous` as `views.refused` has it."""

    rank: int
    generation: int
    words: Sequence[Any]
    previous: Sequence[int | None]


class Renewed(NamedTuple):
    """There is a next generation."""


class Changed(NamedTuple):
    """Somebody is lost, or wants to come."""


class Say(NamedTuple):
    """`patient`: for as long as a call may take, not only the limit."""

    patient: bool


class Renew(NamedTuple):
    without: tuple[int, ...]


class Install(NamedTuple):
    view: View


class ViewMachine:
    def __init__(self, who: str, elastic: bool, generation: int) -> None:
        self.who, self._elastic, self._new, self._first = who, elastic, not generation, not generation
        """`_first`: one of the job's first members; `_new`: they all are, and one that says something else ends all."""
        self.state, self.has_view = SAYS, False
        self._without: set[int] = set()
        """Members that take no part, or were silent."""
        self._called: set[int] = set()
        """Members that have come to this renewal: who has just come is left out no more, once."""

    def begin(self) -> list[Any]:
        self.state = SAYS
        return [Say(self._first and not self.has_view)]

    def take(self, event: Any) -> list[Any]:
        if isinstance(event, Words):
            return self._viewed(event)
        if isinstance(event, Fails):
            return self._lost(event)
        if isinstance(event, Renewed):
            self._new, self._without, self._called = False, set(), set()
            return self.begin()
        return self._renew()

    def _viewed(self, event: Words) -> list[Any]:
        wrong = refused(event.words, event.previous)
        if event.rank in wrong:
            return [Raise(MismatchError(f"{self.who}: {wrong[event.rank]}", {}))]
        said = [  # who is new has had no view, and holds nothing
            each if each.viewed and event.previous[rank] is not None else each._replace(viewed=False, has={})
            for rank, each in enumerate(map(read, event.words)) if each is not None and rank not in wrong
        ]  # fmt: skip
        try:
            view = decide(event.generation, said, self.who)
        except Error as error:
            return [Raise(error)]
        self.state, self.has_view, self._without = HOLDS, True, {*wrong}
        notes = [Note(f"{self.who}: rank {rank} takes no part: {why}") for rank, why in wrong.items()]
        return [*notes, Install(view)]

    def _lost(self, event: Fails) -> list[Any]:
        notes, late = [], isinstance(event.why, TimeoutError)
        if self.state == SAYS:
            goes_on = self.has_view or not self._new or isinstance(event.why, PeerLostError)
            if not self._elastic or not goes_on:
                return [Raise(event.why)]
            if self.has_view and late:
                notes = [Note(f"{self.who}: ranks {[*event.missing]} do not serve, and have no client: left out")]
                self._without = {*event.missing}
        elif not late or event.over:
            return [Raise(event.why)]
        else:
            if event.missing:
                notes = [Note(f"{self.who}: ranks {[*event.missing]} have not come to a renewal: left out")]
            came, self._called = {*event.called} - self._called, {*event.called}
            self._without = self._without - came | {*event.missing}
        return [*notes, *self._renew()]

    def _renew(self) -> list[Any]:
        self.state = RENEWS
        return [Renew(tuple(sorted(self._without)))]
