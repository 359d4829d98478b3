"""A job whose members change: its generations, one agreement after the other, without I/O.

A generation is a row of seats: a rank is a place in it, and a process keeps its `uid` through all of them.  What
members say of an agreement carries the generation's number.  What belongs to a later one waits until this process has
learned that; who asks about an earlier one is told what was decided, also if it is no member any more.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from hocket.control.protocol import words as of
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.decree import Decree
from hocket.control.protocol.messages import by_name, pack, unpack
from hocket.control.protocol.seats import Seat, makes_sense, name_of, seat_of
from hocket.control.protocol.words import Made

HISTORY = 16
"""Generations that are over, whose agreement is still told to who asks."""
EARLY, EARLY_BYTES = 10_000, 16 << 20
"""Words about later generations that are kept, and bytes of those of each member."""
GUESTS, SEAT = 256, 16 << 10
"""Newcomers that wait at once, and bytes of what each says: members tell each other, and agree on all of it."""


# --- what members tell each other


class Says(NamedTuple):
    """A word of this generation's agreement on the next one, or (`round`) on who has come to one of its rounds."""

    generation: int
    word: dict[str, Any]
    round: int = 0


class Dead(NamedTuple):
    """The kernel of this process' host says that it has ended.  Its host's other processes say so."""

    uid: str


class Leaves(NamedTuple):
    """I leave the job."""


class Waits(NamedTuple):
    """This newcomer waits with me."""

    seat: Seat


class Gave(NamedTuple):
    """This newcomer has given up."""

    uid: str


WORDS = by_name(
    of.Prepare, of.Promise, of.Accept, of.Accepted, of.Refuse, of.Decided, of.Learn, of.Lacks, of.Excludes,
    of.Here,
)
TOLD = by_name(Says, Dead, Leaves, Waits, Gave)


class To(NamedTuple):
    """An instruction: tell this process."""

    uid: str
    message: Any


class Generation:
    """The members of one generation, and their agreement on the next."""

    def __init__(
        self, number: int, seats: Iterable[Seat], me: str, infos: Iterable[Any] = (),
        lost: Iterable[tuple[int, of.How]] = (), new: Iterable[int] = (),
    ) -> None:  # fmt: skip
        self.number, self.seats, self.new = number, tuple(seats), tuple(new)
        self.infos = tuple(infos) or (None,) * len(self.seats)
        """The words of each member when it was made, by rank."""
        self.lost = dict(lost)
        """The ranks of the generation before that are no members, and why, by their rank in that."""
        self.ranks = {seat.uid: rank for rank, seat in enumerate(self.seats)}
        self.rank = self.ranks.get(me)
        """This process's; None: it is no member."""
        self.decree = self._agreement()
        self.rounds: dict[int, Decree] = {}
        """Agreements on who has come, by the number of the round."""
        self.last: tuple[int, Made] | None = None
        """The latest round that this process knows to be over, and who came to it."""

    def _agreement(self) -> Decree:
        return Decree(-1 if self.rank is None else self.rank, range(len(self.seats)), self.number, self.new)

    def of(self, number: int) -> Decree:
        """The agreement of a round; 0: on the next generation."""
        if not number:
            return self.decree
        if number not in self.rounds:
            self.rounds[number] = self._agreement()
            for old in [each for each in self.rounds if each <= number - HISTORY]:
                del self.rounds[old]
        return self.rounds[number]

    def next_round(self) -> int:
        """The first after all that this process knows to be over."""
        return self.last[0] + 1 if self.last is not None else 1

    def over(self, number: int, outcome: Made) -> None:
        """This round is."""
        if self.last is None or number > self.last[0]:
            self.last = number, outcome

    def outcome(self, number: int) -> Made | None:
        """The outcome of this round; for one that is long over, the latest.  None: it is not over."""
        agreement = self.rounds.get(number)
        if agreement is not None:
            return agreement.made
        return self.last[1] if self.last is not None and number < self.last[0] else None

    def here(self, number: int) -> int:
        """Count the others that have come to it."""
        agreement = self.rounds.get(number)
        return 0 if agreement is None else len(agreement.here)

    def next(self, me: str) -> Generation:
        """The generation that was decided on."""
        outcome = self.decree.made
        assert outcome is not None
        newcomers = [seat_of(name) for name in outcome.newcomers]
        seats = [*(self.seats[rank] for rank in outcome.members), *newcomers]
        infos = (*outcome.infos, *(seat.info for seat in newcomers))
        return Generation(self.number + 1, seats, me, infos, outcome.lost, range(len(outcome.members), len(seats)))


class Generations:
    """`tell(event)` is this process's own, `hear(uid, message)` another's: what to send.  `now` is the generation."""

    def __init__(self, me: str, first: Generation) -> None:
        self.me, self.now = me, first
        self.past: dict[int, Generation] = {}
        self.gone: dict[str, bool] = {}
        """Processes that are proven to be gone: has it left?"""
        self.away: set[str] = set()
        """Whose connection has ended."""
        self.lobby: dict[str, Seat] = {}
        self._where: dict[str, set[str]] = {}
        """With whom each newcomer waits: two members, where the first has not noticed that its connection broke."""
        self._early: list[tuple[str, Says]] = []
        self._early_bytes: dict[str, int] = {}
        self._with: set[str] = set()
        """With whom there is a connection: that it is dead counts once that has ended."""
        self._said_dead: set[str] = set()

    @property
    def member(self) -> bool:
        """Is this process still one?"""
        return self.now.rank is not None

    def seat(self, uid: str) -> Seat | None:
        """The seat of a member, or of one lately: who was left out is to hear that."""
        known = (each for each in [self.now, *self.past.values()] if uid in each.ranks)
        return next((each.seats[each.ranks[uid]] for each in known), None)

    def has_room(self, seat: Seat) -> bool:
        """May this newcomer wait, too?"""
        return len(self.lobby) < GUESTS and makes_sense(seat) and len(name_of(seat)) <= SEAT

    def others(self) -> list[Seat]:
        """Whom this process knows to belong to the job, and not to be gone."""
        return [seat for seat in self.now.seats if seat.uid not in self.gone and seat.uid != self.me]

    def lost(self, generation: Generation) -> list[int]:
        """Ranks of a generation that are gone for good."""
        later = self.now.ranks if self.now.number > generation.number else generation.ranks
        return [rank for uid, rank in generation.ranks.items() if uid in self.gone or uid not in later]

    # --- what happens

    def come(self, number: int, call: of.Call) -> list[To | of.Claim]:
        """This process comes to a round, and tells all; or it does not wait for some of them any more (`call.late`)."""
        round_ = self.now.rounds.get(number)
        first = round_ is None or round_.call is None
        instructions = self._take(self.now, self.me, call, round_=number)
        here = Says(self.now.number, pack(of.Here()), number)
        return instructions + [To(seat.uid, here) for seat in self.now.seats if first and seat.uid != self.me]

    def call(self, call: of.Call) -> list[To | of.Claim]:
        return self._take(self.now, self.me, call)

    def late(self) -> list[To | of.Claim]:
        return self._take(self.now, self.me, of.Late())

    def granted(self, number: int, members: tuple[int, ...]) -> list[To | of.Claim]:
        return self._take(self.now, self.me, of.Granted(members)) if number == self.now.number else []

    def linked(self, uid: str) -> list[To | of.Claim]:
        """There is a connection to this process: what may have been lost is said again, also of what is decided."""
        self.away.discard(uid)
        self._said_dead.discard(uid)
        self._with.add(uid)
        instructions = self._about(uid, of.Back)
        for each in [each for each, where in self._where.items() if uid in where]:
            instructions += self.gave(each, uid)  # it says now who waits with it
        guests = [seat for seat in self.lobby.values() if self.me in self._where[seat.uid]]
        hosts = {seat.uid: seat.host for seat in self.now.seats}
        here = [each for each in hosts if hosts[each] == hosts.get(self.me) != hosts.get(uid)]
        dead = [each for each in here if self.gone.get(each) is False]
        return [*instructions, *(To(uid, Waits(seat)) for seat in guests), *(To(uid, Dead(each)) for each in dead)]

    def cut(self, uid: str) -> list[To | of.Claim]:
        """The connection with it has ended.  It may come again soon, unless its host has said that it is dead."""
        self._with.discard(uid)
        return self.proven(uid, tell=False) if uid in self._said_dead else []

    def spare(self, uid: str) -> list[To | of.Claim]:
        """This process was away, and may be back in a moment."""
        self.away.discard(uid)
        return self._about(uid, of.Back)

    def unlinked(self, uid: str) -> list[To | of.Claim]:
        self.away.add(uid)
        return [*self.cut(uid), *self._about(uid, of.Away)]

    def proven(self, uid: str, left: bool = False, tell: bool = True) -> list[To | of.Claim]:
        """A process is gone for good.  `tell`: this one has seen that itself, so other hosts are to know."""
        if uid in self.gone or uid == self.me:
            return []
        self.gone[uid] = left
        instructions = self._about(uid, lambda rank: of.Proven(rank, left))
        host = next((seat.host for seat in self.now.seats if seat.uid == uid), "")
        others = [seat for seat in self.others() if tell and not left and seat.host != host]
        return instructions + [To(seat.uid, Dead(uid)) for seat in others]

    def waits(self, seat: Seat, by: str = "") -> list[To | of.Claim]:
        """A newcomer waits with member `by`; "": with this one, so the others are to know."""
        if seat.uid in self.now.ranks or not (seat.uid in self.lobby or self.has_room(seat)):
            return []
        self._where.setdefault(seat.uid, set()).add(by or self.me)
        tell: list[To | of.Claim] = [To(each.uid, Waits(seat)) for each in self.others() if not by]
        if seat.uid in self.lobby:
            return tell
        self.lobby[seat.uid] = seat
        return self._take(self.now, self.me, of.Newcomer(name_of(seat))) + tell

    def gave(self, uid: str, by: str = "") -> list[To | of.Claim]:
        """It waits no more with member `by`; "": with this one."""
        if uid not in self.lobby:
            return []
        where = self._where[uid]
        where.discard(by or self.me)
        tell: list[To | of.Claim] = [To(each.uid, Gave(uid)) for each in self.others() if not by]
        if any(each in self.now.ranks and each not in self.gone for each in where):
            return tell
        del self._where[uid]
        return self._take(self.now, self.me, of.Withdrawn(name_of(self.lobby.pop(uid)))) + tell

    def hear(self, by: str, packed: dict[str, Any]) -> list[To | of.Claim]:
        """Another process's message.  Raises Malformed."""
        message = unpack(packed, TOLD)
        if isinstance(message, Says):
            return self._hear(by, message)
        if isinstance(message, Leaves):
            return self.proven(by, left=True)
        if by not in self.now.ranks:
            return []
        if isinstance(message, Dead):
            return self._is_dead(message.uid) if self._may_know(by, message.uid) else []
        if isinstance(message, Waits):
            return self.waits(message.seat, by)
        return self.gave(message.uid, by)

    def _is_dead(self, uid: str) -> list[To | of.Claim]:
        """Which host a member is on is its own word, so that of a living one it does not count."""
        if uid in self._with:
            self._said_dead.add(uid)
            return []
        return self.proven(uid, tell=False)

    def _may_know(self, by: str, uid: str) -> bool:
        """Does it share a host with this one?  Of this process's own host it asks the kernel itself."""
        hosts = {seat.uid: seat.host for seat in self.now.seats}
        return uid in hosts and hosts[by] == hosts[uid] != hosts.get(self.me)

    def _hear(self, by: str, message: Says) -> list[To | of.Claim]:
        if message.generation > self.now.number:
            nbytes = self._early_bytes.get(by, 0) + len(json.dumps(message.word))
            if len(self._early) < EARLY and nbytes <= EARLY_BYTES:
                self._early.append((by, message))
                self._early_bytes[by] = nbytes
            return []
        generation = self.past.get(message.generation, self.now)
        if generation.number != message.generation or by not in generation.ranks:
            return []  # fencing
        word = unpack(message.word, WORDS)
        if (made := getattr(word, "value", None)) is not None:
            _check(made, len(generation.seats))
        return self._take(generation, by, word, message.generation, message.round)

    # --- one agreement, and the next

    def _about(self, uid: str, event: Any) -> list[To | of.Claim]:
        """Agreements that are over hear it too: who leads one then tells what was decided.

        The rounds of a generation that is over do not: its end says enough.  The latest round comes first, as a
        connection that has just been made may not last.
        """
        instructions: list[To | of.Claim] = []
        about = [(each, 0) for each in [*self.past.values(), self.now] if uid in each.ranks]
        about += [(self.now, number) for number in sorted(self.now.rounds, reverse=True) if uid in self.now.ranks]
        for each, number in about:
            instructions += self._take(each, self.me, event(each.ranks[uid]), round_=number)
        return instructions

    def _take(
        self, generation: Generation, by: str, message: Any, number: int | None = None, round_: int = 0
    ) -> list[To | of.Claim]:
        if generation.rank is None or 0 < round_ <= max(generation.rounds, default=0) - HISTORY:
            return []
        instructions: list[To | of.Claim] = []
        if round_ and round_ not in generation.rounds:
            instructions += self._begin_round(generation, round_)
        agreement = generation.of(round_)
        mine = deque(agreement.take(generation.ranks[by], message, number))
        same: tuple[type, Any, Says] | None = None  # what goes to several members is one object, and encoded once
        while mine:
            each = mine.popleft()
            if isinstance(each, of.Claim):
                instructions += [each] if not round_ else []
            elif each.rank == generation.rank:
                mine += agreement.take(each.rank, each.message, each.generation)
            else:
                what = each.message
                if same is None or same[:2] != (type(what), what) or same[2].generation != each.generation:
                    same = type(what), what, Says(each.generation, pack(what), round_)
                instructions.append(To(generation.seats[each.rank].uid, same[2]))
        if round_ and agreement.made is not None:
            generation.over(round_, agreement.made)
        if generation is self.now and generation.decree.made is not None:
            instructions += self._go_on()
        return instructions

    def _begin_round(self, generation: Generation, number: int) -> list[To | of.Claim]:
        """Begin a round, with what is known of its members."""
        generation.of(number)
        instructions: list[To | of.Claim] = []
        for uid, rank in generation.ranks.items():
            if uid in self.gone:
                instructions += self._take(generation, self.me, of.Proven(rank, self.gone[uid]), round_=number)
            elif uid in self.away:
                instructions += self._take(generation, self.me, of.Away(rank), round_=number)
        return instructions

    def _go_on(self) -> list[To | of.Claim]:
        """The next generation begins: what is known already is known in it."""
        self.past[self.now.number] = self.now
        self.past.pop(self.now.number - HISTORY, None)
        self.now = now = self.now.next(self.me)
        for uid in now.ranks:
            self.lobby.pop(uid, None)
            self._where.pop(uid, None)
        if now.rank is None:
            return []
        instructions: list[To | of.Claim] = []
        for uid in [*now.ranks]:
            if uid in self.gone:
                instructions += self._take(now, self.me, of.Proven(now.ranks[uid], self.gone[uid]))
            elif uid in self.away:
                instructions += self._take(now, self.me, of.Away(now.ranks[uid]))
        for seat in self.lobby.values():
            instructions += self._take(now, self.me, of.Newcomer(name_of(seat)))
        early, self._early, self._early_bytes = self._early, [], {}
        for by, message in early:
            with contextlib.suppress(Malformed):
                instructions += self._hear(by, message)
        return instructions


def _check(made: Made, size: int) -> None:
    """Raises Malformed: so many members cannot have agreed on this."""
    ranks, all_ = made.members, {*made.members, *(rank for rank, _ in made.lost)}
    if not ranks or len(made.infos) != len(ranks) or sorted({*ranks}) != [*ranks] or not all_ <= {*range(size)}:
        raise Malformed(f"an agreement of {size} members on {str(ranks)[:80]}")
    if len({seat_of(name).uid for name in made.newcomers}) != len(made.newcomers):
        raise Malformed("an agreement lets somebody in twice")
