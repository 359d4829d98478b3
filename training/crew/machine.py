"""A crew without I/O: `take(event)` gives what a member does next, by what its program asks and what it has heard.

    state   waits for                        what comes, and what follows
    WORKS   its program                      Comes: Come.  Breaks: Meet
    COMES   more than half, and the grace    Came: Come, Meet (newcomers wait), Fit, or an end.  Fails: Meet
    MEETS   all that live                    Met: Fit, or go on.  Fails: Meet without the silent, or an end
    FITS    the donor, and who is behind     Fitted: Move, or go on, or an end.  Fails: Meet
    MOVES   the same                         Moved: go on.  Fails: Meet

"Go on" is an end, and after a meeting at a boundary Come.  An end is Return or Raise (Again): then the program works.
Each list of instructions ends with one that waits, and whose outcome is the next event, or with an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hocket.errors import MismatchError, PeerLostError
from hocket.training.outer.members import Again

WORKS, COMES, MEETS, FITS, MOVES = "works", "comes", "meets", "fits", "moves"
BOUNDARY, PRESENT = 0, 1
NOWHERE = -1
"""The position of a state that is not whole: a newcomer's, or one that was being received when its donor died."""


class Change(NamedTuple):
    """The changes since the last boundary."""

    generation: int
    size: int
    lost: tuple[int, ...]
    """Ranks of the generation before that are no members any more."""
    joined: int
    """The number of newcomers that came in."""
    healed: bool
    """Did this rank take another one's state?"""


class Attendance(NamedTuple):
    """A member's words when it comes to a moment, or meets the others anew.  JSON has them as a list."""

    moment: int
    position: int
    digest: int | None = None
    waiting: bool = False
    """Do newcomers wait?"""
    word: Any = None


def said(infos: Iterable[tuple[int, Any]]) -> dict[int, Attendance]:
    """The words of members by rank.  One that runs another program is as one that is late: its words are left out."""
    lists = {rank: x for rank, x in infos if isinstance(x, (list, tuple)) and len(x) == len(Attendance._fields)}
    found = {rank: Attendance(*info) for rank, info in lists.items()}
    return {
        rank: each for rank, each in found.items()
        if each.moment in (BOUNDARY, PRESENT) and type(each.moment) is int and type(each.position) is int
        and type(each.waiting) is bool and (each.digest is None or type(each.digest) is int)
    }  # fmt: skip


# --- events: what its program asks ...


class Comes(NamedTuple):
    moment: int
    position: int
    patient: bool = False
    compares: bool = False
    """Are the digests to be said, as at the first moment of a generation?"""


class Breaks(NamedTuple):
    """A call of the round's work has failed."""

    position: int
    why: Exception


# ... and outcomes


class Came(NamedTuple):
    infos: Mapping[int, Attendance]
    """By rank, of who has come."""
    lost: Mapping[int, str]
    """Members that have not, and why: "late", or gone for good."""
    overdue: frozenset[int] = frozenset()
    """Members that have been late for the limit."""


class Met(NamedTuple):
    generation: int
    rank: int
    infos: Mapping[int, Attendance]
    """By rank, of those that a crew runs in."""
    previous: tuple[int | None, ...]
    """Each one's rank in the generation before; None: it is new."""


class Fitted(NamedTuple):
    made: Mapping[int, Mapping[str, Any]]
    """Facts that have to be alike, by rank: the donor's, and theirs who are behind."""
    known: frozenset[int] = frozenset()
    """The ones that have digests of their blocks."""


class Moved(NamedTuple):
    """The state has come as a whole."""


class Fails(NamedTuple):
    """The instruction has failed: a rank is gone, does not answer, or has called `renew`."""

    why: Exception
    missing: tuple[int, ...] = ()
    """Members that live, and have not met."""
    called: tuple[int, ...] = ()
    """Members that have come to meet, in time or not."""
    over: bool = False
    """Has it for so long that it is not tried again?"""


# --- instructions that wait


class Come(NamedTuple):
    says: Attendance
    compared: bool
    """Is the state's digest to be said?"""
    late: tuple[int, ...]
    """Members that nobody waits for."""
    patient: bool


class Meet(NamedTuple):
    says: Attendance
    without: tuple[int, ...]


class Fit(NamedTuple):
    ranks: tuple[int, ...]
    donor: int


class Move(NamedTuple):
    ranks: tuple[int, ...]
    donor: int
    blocks: bool
    """Only those that differ."""
    keeps: bool
    """Has this rank its own state again if it does not come whole?"""


# --- others


class Leave(NamedTuple):
    """This rank is no member any more."""


class Note(NamedTuple):
    """For the log."""

    text: str


class Tell(NamedTuple):
    change: Change


class Return(NamedTuple):
    """The moment is over.  `result`: at a boundary what has changed, at `present` who is here."""

    result: Any


class Raise(NamedTuple):
    error: Exception


class MemberMachine:
    """A member's part.  `new`: its state is to be another's."""

    def __init__(self, rank: int, size: int, generation: int, new: bool) -> None:
        self.rank, self.size, self.generation, self.state = rank, size, generation, WORKS
        self.left_out: tuple[int, ...] = ()
        """Ranks that did not come to the latest moment in time."""
        self.words: tuple[Any, ...] = ()
        """The words of each that has come to it."""
        self.whole = not new
        self._checked = False
        """Have the digests been compared in this generation?"""
        self._asked = Comes(BOUNDARY, NOWHERE)
        self._why: Exception | None = None
        """Why the round is begun again."""
        self._top = NOWHERE
        """The position of the state that is taken."""
        self._donor = 0
        self._keeps = False
        """Is the donor the only one who holds it?  Then this rank does not give up its own before it has that."""
        self._without: tuple[int, ...] = ()
        """Members that were silent in this meeting."""
        self._called: set[int] = set()
        """Members that have come to this meeting: who has just come is left out no more, once."""
        self._few: set[int] | None = None
        """Without these, in this moment, too few have met.  Then all are met once more: others may have left out who
        came just after."""
        self._change: Change | None = None
        """The meeting's, until all that met hold one state."""
        self._changes: list[Change] = []

    def take(self, event: Any) -> list[Any]:
        return TABLE[type(event)](self, event)

    # --- what its program asks

    def _comes(self, event: Comes) -> list[Any]:
        self._asked, self._why = event, None
        self._checked &= not event.compares
        return self._come()

    def _breaks(self, event: Breaks) -> list[Any]:
        self.state, self._asked = WORKS, Comes(PRESENT, event.position)
        return self._lost(Fails(event.why))

    # --- who has come

    def _come(self) -> list[Any]:
        self.state, (moment, _, patient, _) = COMES, self._asked
        compared = self.whole and not self._checked
        return [Come(Attendance(moment, self._position), compared, () if patient else self.left_out, patient)]

    @property
    def _position(self) -> int:
        return self._asked.position if self.whole else NOWHERE

    def _came(self, event: Came) -> list[Any]:
        moment, infos = self._asked.moment, event.infos
        if gone := sorted(rank for rank, how in event.lost.items() if how != "late"):
            return self._lost(Fails(PeerLostError(f"rank {self.rank}: ranks {gone} are gone", gone)))
        self.left_out, ranks = tuple(sorted(event.lost)), at_moment(infos, self.size)
        if self.rank in ranks:
            self.words = tuple(infos[rank].word for rank in ranks)
            if moment == PRESENT:
                return self._end(Return(ranks))
            if len({*ranks, *event.overdue}) == self.size and any(each.waiting for each in infos.values()):
                return self._meet(event.overdue)
            return self._heal({rank: infos[rank] for rank in ranks})
        if moment == PRESENT and (not ranks or max(infos[rank].position for rank in ranks) > self._asked.position):
            return self._again(f"rank {self.rank} came too late: the others have gone on without its part")
        return self._come()

    # --- who goes on

    def _lost(self, event: Fails) -> list[Any]:
        """Meet anew; and if that has failed, without those who live and have not met in time."""
        if self.state != MEETS:
            self._why = event.why
            return self._meet()
        silent = {*self._without} - ({*event.called} - self._called) | {*event.missing}
        self._called.update(event.called)
        if silent == {*self._without} or silent == self._few:
            if self._few is not None:
                return self._end(Raise(event.why))
            self._few = silent
            return self._meet()
        text = f"rank {self.rank} of a crew goes on without ranks {[*event.missing]}: they did not answer in time"
        return [Note(text), *self._meet(silent)]

    def _meet(self, without: Iterable[int] = ()) -> list[Any]:
        """Newcomers come in then, and take the state when they come to a boundary: nobody waits for them."""
        if self._change is not None:
            self._changes.append(self._change)
        self.state, self._change, self._checked, self._without = MEETS, None, False, tuple(sorted(without))
        return [Meet(Attendance(BOUNDARY, self._position), self._without)]

    def _met(self, event: Met) -> list[Any]:
        stay = {rank for rank in event.previous if rank is not None}
        lost = tuple(rank for rank in range(self.size) if rank not in stay)
        self.rank, self.size, self.generation = event.rank, len(event.previous), event.generation
        self.left_out, self._few, self._called = (), None, set()
        self._change = Change(self.generation, self.size, lost, self.size - len(stay), False)
        members = [rank for rank, was in enumerate(event.previous) if was is not None]
        return self._heal({rank: event.infos[rank] for rank in members if rank in event.infos})

    # --- one state

    def _heal(self, infos: Mapping[int, Attendance]) -> list[Any]:
        """Let ranks that are behind take the state of the lowest of the most advanced."""
        self._top = max(each.position for each in infos.values())
        most = [rank for rank, each in infos.items() if each.position == self._top]
        digests = {rank: infos[rank].digest for rank in most if infos[rank].digest is not None}
        if len(set(digests.values())) > 1:
            what = f"rank {self.rank}: the states of position {self._top} differ: digests by rank {digests}"
            return self._end(Raise(MismatchError(what, {rank: f"digest {each}" for rank, each in digests.items()})))
        behind, self._donor = [rank for rank, each in infos.items() if each.position < self._top], min(most)
        here = tuple(sorted((self._donor, *behind)))
        if self._top == NOWHERE:
            why = f"rank {self.rank}: nobody is left who holds the state: begin again, from a checkpoint"
            return self._end(Raise(PeerLostError(why, [])))
        self._keeps = self.whole and len(most) == 1
        if not behind or self.rank not in here:
            return self._go_on()
        self.state = FITS
        return [Fit(here, self._donor)]

    def _fitted(self, event: Fitted) -> list[Any]:
        """Refuse those behind that have another state than the donor; the others go on."""
        wanted = event.made[self._donor]
        refused = {rank: unlike(made, wanted) for rank, made in event.made.items() if made != wanted}
        if self.rank in refused:
            text = f"rank {self.rank} does not fit into this crew: {refused[self.rank]}"
            return [Leave(), *self._end(Raise(MismatchError(text, {})))]
        notes = [Note(f"rank {rank} does not fit into this crew: {why}") for rank, why in refused.items()]
        here = tuple(rank for rank in sorted(event.made) if rank not in refused)
        if len(here) == 1:
            return [*notes, *self._go_on()]
        self.state, known = MOVES, event.known.intersection(here)
        self.whole &= self._keeps or self.rank == self._donor  # until it has come as a whole
        return [*notes, Move(here, self._donor, self._donor in known and len(known) > 1, self._keeps)]

    def _moved(self, event: Moved) -> list[Any]:
        self.whole = True
        self._asked = self._asked._replace(position=self._top)
        return self._go_on(healed=self.rank != self._donor)

    def _go_on(self, healed: bool = False) -> list[Any]:
        if self._change is None:
            self._checked = True
            return self._end(Return(self._told(healed)))
        change, self._change = self._change._replace(healed=healed), None
        self._changes.append(change)
        if self._asked.moment == BOUNDARY:
            return [Tell(change), *self._come()]
        text = f"rank {self.rank}: {self.size} ranks begin the round again: {self._why}"
        return [Tell(change), *self._again(text)]

    def _told(self, healed: bool) -> Change | None:
        """All changes since the last boundary, as one."""
        changes, self._changes = self._changes, []
        if not changes:
            return Change(self.generation, self.size, (), 0, True) if healed else None
        lost = tuple(rank for each in changes for rank in each.lost)
        return changes[-1]._replace(lost=lost, joined=sum(each.joined for each in changes),
                                    healed=healed or any(each.healed for each in changes))  # fmt: skip

    def _again(self, text: str) -> list[Any]:
        return self._end(Raise(Again(text)))

    def _end(self, end: Return | Raise) -> list[Any]:
        self.state, self._few = WORKS, None
        return [end]


TABLE: dict[type, Callable[[MemberMachine, Any], list[Any]]] = {
    Comes: MemberMachine._comes, Breaks: MemberMachine._breaks, Came: MemberMachine._came, Met: MemberMachine._met,
    Fitted: MemberMachine._fitted, Moved: MemberMachine._moved, Fails: MemberMachine._lost,
}  # fmt: skip


def at_moment(infos: Mapping[int, Attendance], size: int) -> tuple[int, ...]:
    """The ranks that go on, of those that have come: more than half of the members; none, if no moment has so many.

    Those at a `present` of one position; or all at a boundary, as there who is behind takes the others' state.
    """
    moments: dict[int, list[int]] = {}
    for rank, each in infos.items():
        moments.setdefault(each.position if each.moment == PRESENT else NOWHERE, []).append(rank)
    return next((tuple(ranks) for _, ranks in sorted(moments.items(), reverse=True) if 2 * len(ranks) > size), ())


def unlike(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """In words, what of a state is not as the members have it.

    >>> unlike({"arrays": {"w": "float32[4]"}, "every": 5}, {"arrays": {"w": "float32[3]"}, "every": 4})
    "array 'w' is float32[4], the members' is float32[3]; every is 5, the members' is 4"
    """
    rows = [{**{f"array {name!r}": x for name, x in each["arrays"].items()}, **each} for each in (made, wanted)]
    its, theirs = ({name: value for name, value in row.items() if name != "arrays"} for row in rows)
    words = [f"{name} is {its.get(name, 'none')}, the members' is {theirs.get(name, 'none')}"
             for name in sorted(its.keys() | theirs.keys()) if its.get(name) != theirs.get(name)]  # fmt: skip
    return "; ".join(words[:5])
