"""The members of an elastic job, connected with each other: each keeps a listener, and the higher rank dials.

These connections outlive generations: a process keeps its `uid`, only its rank changes.  What they say is of two kinds:
who is gone or comes, and the agreement on the next generation (`protocol/generations.py`).  Also where a generation
meets: the listener of its rank 0 hands what comes there to that generation's coordinator.
Everything but `agree` and the threads that dial runs on the reactor's thread.
Cost: a connection for each pair of members, and one descriptor more for each other process of the host.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hocket.control.elastic.door import Door, Iam, Take
from hocket.control.elastic.lobby import Admitted, Asks, Full, Tells
from hocket.control.elastic.members import AGAIN, MemberLinks
from hocket.control.elastic.processes import kernel, started
from hocket.control.elastic.reaching import Own
from hocket.control.handshake import Hello
from hocket.control.link import ControlLink, Once, encode
from hocket.control.links import Links
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.generations import Generation, Generations, Leaves, Says, To
from hocket.control.protocol.membership import PURPOSE as MEETING
from hocket.control.protocol.messages import by_name, pack, unpack
from hocket.control.protocol.seats import Seat
from hocket.control.protocol.words import Call, Claim, Here, Made
from hocket.control.reactor import Reactor

log = logging.getLogger("hocket.control")
COMES = 3.0
"""Seconds, at least, in which a member of a new generation reaches the others."""
HURRY = 1.0
"""Seconds in which a round may end where a member has called for the next generation."""
ASK = 0.3
"""Seconds before its time is over in which a rank asks whom the leader waits for."""


class Renews(NamedTuple):
    """This process has called renew() in this generation, and calls nothing else there any more."""

    generation: int
    finished: dict[str, int]
    """Calls that it has finished, by communicator: in a later one it is waited for in vain."""


OWN = by_name(Renews)
"""Messages that are not for the agreement."""


class Mesh(MemberLinks):
    """This process's connections with the job's other members, and what they agree on."""

    def __init__(self, reactor: Reactor, own: Own, info: Any = None) -> None:
        super().__init__(reactor, own)
        self.notice: Any = None
        """The notice for those who may come."""
        self.met = 0
        """The generation whose meeting this process has been to, whether all came or not."""
        self.callbacks: list[Callable[[], object]] = []
        """Called, on the reactor's thread, when somebody is gone or comes."""
        self._changed = threading.Condition()
        self._seen: tuple[int, int, tuple[str, ...]] = (-1, 0, ())
        self._guests: dict[str, ControlLink] = {}
        self._mine = Renews(-1, {})
        self._renewing: dict[str, Renews] = {}
        self._door = Door(reactor, own, self._arrives)
        pid = os.getpid()
        self.seat = Seat(self.uid, self._door.addresses, kernel(), pid, started(pid), info, self._identity.public)

    # --- its owner's threads

    def begin(self, generation: Generation, met: int) -> None:
        """This process is a member: connect with the others."""
        self.met = met
        self.generations = Generations(self.uid, generation)
        self.reactor.soon(self._begun)

    def agree(self, call: Callable[[Generation], Call] | None, deadline: float) -> Generation | None:
        """The next generation: that was made meanwhile, or on which all members agree now.

        None: time is over; `missing` tells who has not called.  `call` None: this process has called.
        """
        before, asked = self.now.number, call is None
        if call is not None and before <= self.met:
            self.reactor.soon(lambda: self._call(call(self.now), before))
        with self._changed:
            while self.now.number <= self.met:
                left = deadline - time.monotonic()
                if left <= ASK and not asked:
                    asked = True
                    self.reactor.soon(lambda: self._late(before))
                if left <= 0 or self.reactor.dead:
                    return None
                self._changed.wait(left if asked else left - ASK)
        return self.now

    def come(self, call: Call, grace: float, deadline: float) -> Made | None:
        """The next round of the generation at hand: who has come to it, and what each said.

        Who has not come `grace` seconds after more than half have, is not waited for.  None: time is over, there is a
        later generation, or a member has called for one and the round is not over HURRY seconds later.
        """
        generation, due, number = self.now, deadline, 0

        def begin() -> None:
            nonlocal number
            if self.now is generation:
                number = generation.next_round()
                self._do(self._in_round(number, call))

        self.reactor.soon(begin)
        with self._changed:
            outcome: Made | None = None
            while not number or (outcome := generation.outcome(number)) is None:
                now = time.monotonic()
                over = now >= deadline or self.reactor.dead or self.now is not generation
                if over or self._waits_in_vain(generation, number):
                    return None
                if generation.decree.here:
                    deadline = min(deadline, now + HURRY)
                if due == deadline and 2 * (generation.here(number) + 1) > len(generation.seats):
                    due = now + grace
                if now >= due:
                    self.reactor.soon(lambda: self._call_late(number, call))
                    due = now + AGAIN[1]
                self._changed.wait(min(due, deadline) - now)
        return outcome

    def renews(self, generation: int, finished: dict[str, int]) -> None:
        """Tell the others, that nobody waits for this process in another call."""
        self._mine = mine = Renews(generation, finished)

        def tell() -> None:
            for link in self._links.values():
                link.send(pack(mine))

        self.reactor.soon(tell)

    def renewing(self, generation: Generation) -> dict[int, dict[str, int]]:
        """Which others have called renew() in it, by rank, and what they had finished."""
        number, ranks, told = generation.number, generation.ranks, self._renewing.copy()
        return {ranks[uid]: each.finished for uid, each in told.items() if each.generation == number and uid in ranks}

    def _waits_in_vain(self, generation: Generation, number: int) -> bool:
        """Has somebody called renew() that had not come to this round?"""
        came = generation.rounds.get(number)
        return any(came is None or rank not in came.here for rank in self.renewing(generation))

    def missing(self, of_round: bool = False) -> list[str]:
        """For whom this rank, or the one that leads the agreement, waits: uids."""
        answer: list[str] = []
        asked = threading.Event()

        def look() -> None:
            agreement = self.now.rounds.get(self.now.next_round()) if of_round else self.now.decree
            missing = agreement.missing() if agreement is not None else []
            answer.extend(self.now.seats[rank].uid for rank in missing)
            asked.set()

        self.reactor.soon(look)
        asked.wait(ASK)
        return answer

    def lobby(self) -> list[Seat]:
        """The newcomers that wait to be let in."""
        return [] if self.generations is None else list(self.generations.lobby.values())

    def reachable(self, uid: str) -> bool:
        generations = self.generations
        return generations is not None and uid not in generations.gone and uid not in generations.away

    def job_of(self, generation: Generation) -> str:
        """The name under which a generation meets."""
        return Hello(0, MEETING, f"{self.own.job}/{generation.number}").job

    def join(self, admitted: Admitted) -> None:
        """A newcomer was let in."""
        self.own = self.own._replace(job=admitted.job, most=admitted.most)
        self._door.belongs_to(admitted.job)
        new = [rank for rank, before in enumerate(admitted.previous) if before is None]
        now = Generation(admitted.generation, admitted.seats, self.uid, admitted.infos, new=new)
        self.begin(now, met=now.number - 1)

    def host(self, job: str, links: Links, take: Take) -> None:
        """This process is rank 0 of a generation: what comes to its meeting goes to these links."""
        self.reactor.soon(lambda: self._host(job, links, take))

    def _host(self, job: str, links: Links, take: Take) -> None:
        self._door.host(job, links, take)
        for uid in self.now.ranks.keys() - {self.uid}:
            if self._gave_up(uid) or not self.reachable(uid):
                self._missed(uid)

    def _gave_up(self, uid: str) -> bool:
        """Has it called for the next generation already?"""
        return self.now.ranks.get(uid, -1) in self.now.decree.here

    def _missed(self, uid: str) -> None:
        """The generation that meets here hears that it need not wait for this one."""
        job, links = self._door.meeting or ("", None)
        how = "it has given up this meeting" if self._gave_up(uid) else "its process has ended, or does not answer"
        if links is not None and job == self.job_of(self.now) and uid in self.now.ranks:
            links.missed(self.now.ranks[uid], how)

    def _arrives(self, word: Any, link: ControlLink) -> None:
        if self.generations is None or self.closed:
            link.close()  # it comes again
        elif isinstance(word, Iam):
            self._comes(word, link)
        elif isinstance(word, Asks):
            link.send(pack(Tells(self.notice)))
            link.close()
        else:
            self._enters(word.seat, link)

    # --- members

    def _begun(self) -> None:
        for seat in self.now.seats:
            if seat.uid not in self._watched and seat.uid != self.uid:
                self._watched[seat.uid] = self._watch(seat) if seat.host == self.seat.host else None
            if self.now.rank is not None and self.now.ranks[seat.uid] < self.now.rank:
                self._dial(seat)
        number = self.now.number
        self.reactor.later(max(COMES, self.reactor.lost_after), lambda: self._who_came(number))
        self._look()

    def _hears(self, uid: str, packed: dict[str, Any]) -> None:
        assert self.generations is not None
        self._vain.pop(uid, None)
        try:
            if OWN.keys() & packed:
                self._is_told(uid, unpack(packed, OWN))
            else:
                self._do(self.generations.hear(uid, packed))
                if self._gave_up(uid):
                    self._missed(uid)
        except Malformed as why:
            log.warning("hocket: a member sent a message that is not understood: %s", why)

    def _greet(self, link: ControlLink) -> None:
        if self._mine.generation == self.now.number:
            link.send(pack(self._mine))

    def _is_told(self, uid: str, word: Renews) -> None:
        self._renewing[uid] = word
        with self._changed:
            self._changed.notify_all()

    # --- newcomers

    def _enters(self, seat: Seat, link: ControlLink) -> None:
        assert self.generations is not None
        living = [uid for uid in self.now.ranks if uid not in self.generations.gone]
        full = 0 < self.own.most <= len(living) + len(self.lobby())
        if full and seat.uid not in self.now.ranks:
            link.send(pack(Full(self.own.most)))
            link.close()
            return
        if seat.uid in self._guests or not self.generations.has_room(seat) or self._is_another(seat):
            link.close()  # it comes again
            return
        self._guests[seat.uid] = link
        link.on_message = lambda packed: self._speaks(seat.uid, link)
        link.on_end = lambda how: self._gives_up(seat.uid)
        self._do(self.generations.waits(seat))
        self._admit()

    def _speaks(self, uid: str, link: ControlLink) -> None:
        """A newcomer that waits says nothing more."""
        link.close()
        self._gives_up(uid)

    def _is_another(self, seat: Seat) -> bool:
        """Does it say that it is a member, which it is not?"""
        return seat.uid in self.now.ranks and seat not in self.now.seats

    def _gives_up(self, uid: str) -> None:
        self._guests.pop(uid, None)
        if self.generations is not None:
            self._do(self.generations.gave(uid))

    def _admit(self) -> None:
        """Tell those that wait here and are members now."""
        for uid in [uid for uid in self._guests if uid in self.now.ranks]:
            link = self._guests.pop(uid)
            now = self.now
            previous, own = self.previous_ranks(now), self.own
            link.send(pack(Admitted(now.number, list(now.seats), list(now.infos), previous, own.job, own.most)))
            link.close()

    def previous_ranks(self, now: Generation) -> list[int | None]:
        """The rank that each had in the generation before."""
        assert self.generations is not None
        before = self.generations.past.get(now.number - 1)
        return [None if before is None else before.ranks.get(seat.uid) for seat in now.seats]

    # --- the agreement

    def _call(self, call: Call, number: int) -> None:
        assert self.generations is not None
        if number == self.now.number:
            first = self.now.decree.call is None
            here = Says(number, pack(Here()))  # who stands in `come` is to call, too
            others = [To(seat.uid, here) for seat in self.now.seats if first and seat.uid != self.uid]
            self._do([*self.generations.call(call), *others])

    def _in_round(self, number: int, call: Call) -> list[To | Claim]:
        assert self.generations is not None
        return self.generations.come(number, call)

    def _call_late(self, number: int, call: Call) -> None:
        """Call late those that have not come to this round."""
        agreement = self.now.rounds.get(number)
        if agreement is None:
            return
        late = tuple(rank for rank in agreement.members if rank not in agreement.here and rank != self.now.rank)
        if agreement.made is None and agreement.call is not None and agreement.call.late != late:
            self._do(self._in_round(number, call._replace(late=late)))

    def _late(self, number: int) -> None:
        assert self.generations is not None
        if number == self.now.number:
            self._do(self.generations.late())

    def _do(self, instructions: Sequence[To | Claim]) -> None:
        once = Once(lambda message: encode(pack(message)))
        for each in instructions:
            if isinstance(each, Claim):
                self._claim(each)
            elif each.uid in self._links:
                self._links[each.uid].post(once(each.message))
        self._look()

    def _claim(self, claim: Claim) -> None:
        """The store may be slow, so it is asked by a thread."""
        if self.own.store is None:
            return

        def ask() -> None:
            wanted = ",".join(map(str, claim.members))
            try:
                answer = self.own.store.first(f"hocket/{self.own.job}/{claim.generation}", wanted)
            except Exception as why:
                log.warning("hocket: the store does not say which half of the job goes on: %s", why)
                return
            text = answer.decode() if isinstance(answer, bytes) else str(answer)
            granted = tuple(int(each) for each in text.split(","))
            self.reactor.soon(lambda: self._granted(claim.generation, granted))

        threading.Thread(target=ask, name="hocket-claim", daemon=True).start()

    def _granted(self, number: int, members: tuple[int, ...]) -> None:
        assert self.generations is not None
        self._do(self.generations.granted(number, members))

    def _look(self) -> None:
        """Draw the conclusions from what has changed."""
        assert self.generations is not None
        known = self.now.number, len(self.generations.gone), tuple(self.generations.lobby)
        with self._changed:  # a round may be over
            self._changed.notify_all()
        if known == self._seen:
            return
        if known[0] != self._seen[0]:
            self._seen = known
            self._admit()
            self._begun()
        self._seen = known
        for uid in list(self.generations.gone):
            if uid in self._watched:
                self._forget(uid)
        for each in list(self.callbacks):
            self.reactor.guard(each)

    def _forget(self, uid: str) -> None:
        self._renewing.pop(uid, None)
        super()._forget(uid)

    def _leave(self) -> None:
        for link in self._links.values():
            link.send(pack(Leaves()))
        self.closed = True
        self.reactor.soon(self._shut)

    def _shut(self) -> None:
        self.closed = True
        self._door.close()
        for link in [*self._links.values(), *self._guests.values()]:
            link.close()
        for process in self._watched.values():
            if process is not None:
                self.reactor.remove(process, close=True)
        self._links, self._guests, self._watched = {}, {}, {}
