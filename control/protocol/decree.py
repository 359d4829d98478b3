"""Which ranks go on: one agreement of the members of a generation on the next one, without I/O.

It is Paxos for one value (Lamport, "Paxos made simple", 2001), led by the lowest rank that is not gone:

    prepare ->  <- promise (when that rank has called, with its info)   accept ->  <- accepted   decided ->

A ballot is (round, rank).  Messages may come late, twice and in any order; a connection that ends is told by `Away`,
one that comes again by `Back`.  Who restarts is a newcomer: what a rank has promised lives in its memory.

One component.  The others of a generation of n are proven dead (by a host's kernel or launcher), or silent.  Ranks may
go on if nobody is silent, or if they are more than n/2, or n/2 with the one grant.  The proven dead count in n: else a
part that had agreed before they died, and one that has not heard of it, could both be more than half of the rest.
Newcomers that never come must not cost the others that.  Of a generation with newcomers a rank knows that all have
come to its meeting (`met` 1), and later that all know it (2), or neither (0); where one has reached 2, none is at 0.
Where somebody at 0 is here, only old members are counted, where somebody at 2 is, all, and else both in turn: two such
parts always share a rank.  A newcomer that is silent is silent for all: it may have gone on with an old member.
Cost: 5 messages a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hocket.control.protocol.words import (
    NONE,
    Accept,
    Accepted,
    Away,
    Back,
    Ballot,
    Call,
    Claim,
    Decided,
    Excludes,
    Granted,
    Here,
    How,
    Lacks,
    Late,
    Learn,
    Made,
    Newcomer,
    Prepare,
    Promise,
    Proven,
    Refuse,
    SendTo,
    Withdrawn,
)

Instructions = Iterator[SendTo | Claim]


@dataclass
class Lead:
    """A ballot of this rank's."""

    ballot: Ballot
    promises: dict[int, Promise]
    value: Made | None = None
    accepted: frozenset[int] = frozenset()


class Decree:
    """`take(by, message)` gives what to send; `made` is what was decided."""

    def __init__(self, rank: int, members: Iterable[int], generation: int, new: Iterable[int] = ()) -> None:
        self.rank, self.members, self.generation = rank, tuple(members), generation
        self.old = set(self.members) - {*new}
        """Members of the generation before."""
        self.made: Made | None = None
        self.call: Call | None = None
        self.dead: set[int] = set()
        self.left: set[int] = set()
        """Which of these said goodbye."""
        self.away: set[int] = set()
        self.newcomers: list[str] = []
        self.granted: tuple[int, ...] | None = None
        self.here: set[int] = set()
        """Members that have said that they have called."""
        self._promised, self._accepted = NONE, NONE
        self._value: Made | None = None
        self._asked: dict[int, Prepare] = {}
        """Prepares that wait for this rank's own call."""
        self._lead: Lead | None = None
        self._round = 0
        """The round of its next ballot: none is used twice."""
        self._lacks: tuple[int, ...] | None = None
        self._excludes: dict[int, tuple[int, ...]] = {}
        """Whom each member that has called excludes, as this rank has heard."""
        self._leader = self.leader

    @property
    def leader(self) -> int | None:
        """The lowest rank that is not gone and that nobody excludes, as this rank sees it; or all are excluded."""
        gone = self.dead | self.away
        own = (*self.call.without, *self.call.late) if self.call else ()
        excluded = {*own, *(r for by, ranks in self._excludes.items() if by not in gone for r in ranks)}
        present = [rank for rank in self.members if rank not in gone]
        return min([rank for rank in present if rank not in excluded] or present, default=None)

    def take(self, by: int, message: Any, generation: int | None = None) -> list[SendTo | Claim]:
        """`generation`: the message's; None for what this process says itself."""
        if generation not in (None, self.generation):
            return []  # fencing
        return [*HANDLERS[type(message)](self, by, message), *self._look()]

    def missing(self) -> list[int]:
        """Whom this rank waits for: who has not called, as the leader sees it; else the leader.

        Never itself, though a leader may exclude this rank, or not have heard yet that it has called.
        """
        if self._lead is not None:
            called = {*self._lead.promises, *self._excludes}
            found = [r for r in self._awaited(self._lead) if r not in called]
        elif self._lacks is not None:
            found = [*self._lacks]
        else:  # a leader that has called excludes who has not
            found = [*self._excludes.get(self.leader, (self.leader,))] if self.leader is not None else []
        return [r for r in found if r != self.rank]

    # --- the leader

    def _look(self) -> Instructions:
        """Begin to lead, or stop.  Who leads when all is decided tells it, as the leader before may have died."""
        leader, before = self.leader, self._leader
        self._leader = leader
        if leader != before and self.made is not None:
            yield from self._tell()
        if leader == self.rank and self.call is not None and self.made is None and self._lead is None:
            yield from self._begin()
        elif leader != self.rank and self._lead is not None and self._lead.value is None:
            self._lead = None
            if leader is not None:  # its older ballot can win no more, and nothing else would tell it
                yield self._send(leader, Refuse(self._promised))

    def _begin(self) -> Instructions:
        round_ = max(self._round, self._promised[0] + (self._promised[1] > self.rank))
        self._round, self._lead = round_ + 1, Lead((round_, self.rank), {})
        for rank in self.members:
            yield self._send(rank, Prepare(self._lead.ballot))

    def _awaited(self, lead: Lead) -> list[int]:
        """Members that must call before a value is proposed: all that are connected, and that nobody excludes or calls
        late."""
        others = self.dead | self.away | self._excluded(lead) | self._late(lead)
        return [r for r in self.members if r not in others]

    def _late(self, lead: Lead) -> set[int]:
        """Members that are not waited for any more, and have not called."""
        return {r for each in lead.promises.values() for r in each.late} - set(lead.promises)

    def _excluded(self, lead: Lead) -> set[int]:
        assert self.call is not None
        return {*self.call.without, *(r for each in lead.promises.values() for r in each.without)} - {self.rank}

    def _may_go_on(self, ranks: Iterable[int]) -> bool:
        """Is nobody else left who could go on?"""
        here = set(ranks)
        return all(self._enough(here, of) for of in self._counted(here))

    def _enough(self, here: set[int], of: set[int]) -> bool:
        part, n = here & of, len(of)
        silent = set(self.members) - here - self.dead
        return not silent or 2 * len(part) > n or (2 * len(part) == n and {*(self.granted or ())} & of == part)

    def _counted(self, here: set[int]) -> list[set[int]]:
        """Ranks of which more than half must be here."""
        promises = self._lead.promises if self._lead is not None else {}
        met = {promises[rank].met for rank in here if rank in promises}
        return [self.old] if 0 in met else [set(self.members)] if 2 in met else [self.old, set(self.members)]

    def _go_on(self) -> Instructions:
        """Propose or decide, if enough have answered."""
        lead = self._lead
        if lead is None:
            return
        awaited = self._awaited(lead)
        whole: tuple[int, ...] = ()
        if set(awaited) <= set(lead.promises if lead.value is None else lead.accepted):
            whole = tuple(awaited if lead.value is None else sorted(lead.accepted))
        here = set(whole)
        half = all(2 * len(here & of) >= len(of) for of in self._counted(here))
        if whole and not self._may_go_on(whole) and half and self.granted is None:
            yield Claim(self.generation, whole)
        elif lead.value is not None and self._may_go_on(lead.accepted):
            yield from self._decided(self.rank, Decided(lead.value))
        elif lead.value is None and whole and self._may_go_on(lead.promises):
            lead.value = self._chosen(lead) or self._new(lead, awaited)
            if lead.value is not None:
                for rank in {*awaited, *lead.promises}:
                    yield self._send(rank, Accept(lead.ballot, lead.value))

    def _chosen(self, lead: Lead) -> Made | None:
        """The value that may have been decided already."""
        return max(lead.promises.values(), key=lambda promise: promise.accepted).value

    def _new(self, lead: Lead, members: list[int]) -> Made | None:
        if not self._may_go_on(members):
            return None
        gone = set(self.members) - set(members)
        excluded = self._excluded(lead)
        lost: dict[int, How] = {
            r: "left" if r in self.left
            else "dead" if r in self.dead
            else "excluded" if r in excluded
            else "unreachable" if r in self.away
            else "late"
            for r in sorted(gone)
        }  # fmt: skip
        assert self.call is not None
        newcomers = self.newcomers if all(lead.promises[r].admit for r in members) else []
        newcomers = newcomers[: max(0, self.call.most - len(members))] if self.call.most else newcomers
        if len(members) + len(newcomers) < max(lead.promises[r].least for r in members):
            return None
        infos = tuple(lead.promises[r].info for r in members)
        return Made(tuple(members), tuple(newcomers), infos, tuple(lost.items()))

    def _promise(self, by: int, promise: Promise) -> Instructions:
        lead = self._lead
        if lead is None or promise.ballot != lead.ballot or self.rank in promise.without:
            return  # whom somebody excludes does not lead: `Excludes` is on its way
        lead.promises[by] = promise
        if lead.value is not None:
            yield self._send(by, Accept(lead.ballot, lead.value))
        yield from self._go_on()

    def _refuse(self, by: int, refuse: Refuse) -> Instructions:
        if self._lead is not None and refuse.ballot > self._lead.ballot:
            self._lead, self._round = None, refuse.ballot[0] + 1  # if it still leads, it begins again
        yield from ()

    def _has_accepted(self, by: int, accepted: Accepted) -> Instructions:
        lead = self._lead
        if lead is not None and accepted.ballot == lead.ballot and lead.value is not None:
            lead.accepted |= {by}
            yield from self._go_on()

    # --- every member

    def _prepare(self, by: int, prepare: Prepare) -> Instructions:
        if self.made is not None:
            yield self._send(by, Decided(self.made))
        elif prepare.ballot < self._promised:
            yield self._send(by, Refuse(self._promised))
        elif self.call is None:
            self._asked[by] = max(prepare, self._asked.get(by, prepare))
        else:
            self._promised = prepare.ballot
            yield self._send(by, self._says(self.call))

    def _says(self, call: Call) -> Promise:
        accepted, value = self._accepted, self._value
        said = call.info, call.without, call.least, accepted, value, call.admit, call.late, call.met
        return Promise(self._promised, *said)

    def _accept(self, by: int, accept: Accept) -> Instructions:
        if self.made is not None:
            yield self._send(by, Decided(self.made))
        elif accept.ballot < self._promised:
            yield self._send(by, Refuse(self._promised))
        else:
            self._promised = self._accepted = accept.ballot
            self._value = accept.value
            yield self._send(by, Accepted(accept.ballot))

    def _decided(self, by: int, decided: Decided) -> Instructions:
        if self.made is None:
            self.made, self._lead = decided.value, None
            if by == self.rank or self.leader == self.rank:
                yield from self._tell()

    def _tell(self) -> Instructions:
        assert self.made is not None
        for rank in self.members:
            if rank != self.rank:
                yield self._send(rank, Decided(self.made))

    def _learn(self, by: int, learn: Learn) -> Instructions:
        if self.made is not None:
            yield self._send(by, Decided(self.made))
        elif self._lead is not None:
            yield self._send(by, Lacks(tuple(self.missing())))

    def _is_lacking(self, by: int, lacks: Lacks) -> Instructions:
        self._lacks = lacks.ranks
        yield from ()

    def _is_here(self, by: int, here: Here) -> Instructions:
        self.here.add(by)
        yield from ()

    def _is_told(self, by: int, excludes: Excludes) -> Instructions:
        self._excludes[by] = excludes.ranks
        yield from ()

    # --- what this process says

    def _is_late(self, by: int, late: Late) -> Instructions:
        self._lacks = None
        if self.leader not in (None, self.rank) and self.made is None:
            yield self._send(self.leader, Learn())

    def _called(self, by: int, call: Call) -> Instructions:
        before, self.call = self.call, call
        if call.without or before is not None:
            for rank in self.members:
                yield self._send(rank, Excludes(call.without))
        asked, self._asked = self._asked, {}
        for rank, prepare in asked.items():
            yield from self._prepare(rank, prepare)
        if before is None:
            return
        if self._lead is not None and self._lead.value is None:
            self._lead = None  # it begins again
        elif self.made is None and self._promised != NONE and self._promised[1] != self.rank:
            yield self._send(self._promised[1], self._says(call))

    def _gone(self, by: int, gone: Away | Proven) -> Instructions:
        if isinstance(gone, Proven) and gone.left:
            self.left.add(gone.rank)
        (self.dead if isinstance(gone, Proven) else self.away).add(gone.rank)
        yield from self._go_on()

    def _back(self, by: int, back: Back) -> Instructions:
        """Words that were on their way when the connection ended are said again."""
        self.away.discard(back.rank)
        if self.made is not None:
            yield self._send(back.rank, Decided(self.made))
            return
        if self.call is not None:
            yield self._send(back.rank, Excludes(self.call.without))
            yield self._send(back.rank, Here())
        if self._lead is not None:
            yield self._send(back.rank, Prepare(self._lead.ballot))
            if self._lead.value is not None:
                yield self._send(back.rank, Accept(self._lead.ballot, self._lead.value))

    def _comes(self, by: int, newcomer: Newcomer) -> Instructions:
        if newcomer.name not in self.newcomers:
            self.newcomers.append(newcomer.name)
        yield from self._go_on()

    def _withdraws(self, by: int, withdrawn: Withdrawn) -> Instructions:
        if withdrawn.name in self.newcomers:
            self.newcomers.remove(withdrawn.name)
        yield from ()

    def _is_granted(self, by: int, granted: Granted) -> Instructions:
        self.granted = granted.members
        yield from self._go_on()

    def _send(self, rank: int, message: Any) -> SendTo:
        return SendTo(rank, self.generation, message)


HANDLERS: dict[type, Callable[[Decree, int, Any], Instructions]] = {
    Prepare: Decree._prepare, Promise: Decree._promise, Accept: Decree._accept, Accepted: Decree._has_accepted,
    Refuse: Decree._refuse, Decided: Decree._decided, Learn: Decree._learn, Call: Decree._called, Away: Decree._gone,
    Proven: Decree._gone, Back: Decree._back, Newcomer: Decree._comes, Withdrawn: Decree._withdraws,
    Granted: Decree._is_granted, Lacks: Decree._is_lacking, Excludes: Decree._is_told, Late: Decree._is_late,
    Here: Decree._is_here,
}  # fmt: skip
