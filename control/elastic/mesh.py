"""The members of an elastic job, connected with each other: each keeps a listener, and the higher rank dials.

These connections outlive generations: a process keeps its `uid`, only its rank changes.  What they say is of two kinds:
who is gone or comes, and the agreement on the next generation (`protocol/generations.py`).  Also where a generation
meets: the listener of its rank 0 hands what comes there to that generation's coordinator.
Everything but `agree` and the threads that dial runs on the reactor's thread.
Cost: a connection for each pair of members, and one descriptor more for each other process of the host.
"""

from __future__ import annotations

import hmac
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from hocket.control.addresses import remove_dead
from hocket.control.elastic.door import Door, Iam, Take
from hocket.control.elastic.lobby import Admitted, Asks, Full, Tells
from hocket.control.elastic.processes import Process, kernel, started, watch
from hocket.control.elastic.proving import Identity
from hocket.control.elastic.reaching import PEER, Gone, Own, reach_any
from hocket.control.handshake import Hello
from hocket.control.link import GONE, LIMIT, Link, Once, encode
from hocket.control.links import Links
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.generations import Claim, Generation, Generations, Leaves, Says, To
from hocket.control.protocol.membership import PURPOSE as MEETING
from hocket.control.protocol.messages import by_name, pack, unpack
from hocket.control.protocol.seats import Seat, uid_of
from hocket.control.protocol.words import Call, Here, Made
from hocket.control.reactor import Reactor
from hocket.errors import TransportError

log = logging.getLogger("hocket.control")
DIAL = 1.0
"""Seconds for one attempt to reach a member."""
AGAIN = (0.02, 0.5)
"""Seconds between two attempts, at first and at most."""
PROOF = 2.0, 0.3
"""Seconds in which a kernel may prove that a process is dead whose connection has ended: this host's, another's.

This host's proves it at once, but where all cores are busy not within half a second."""
OTHER_WAY = 0.3, 0.6
"""Seconds after which the lower rank dials, at random: two that dial each other at once close both connections."""
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


class Mesh:
    """This process's connections with the job's other members, and what they agree on."""

    def __init__(self, reactor: Reactor, own: Own, info: Any = None) -> None:
        self.reactor, self.own, self.closed = reactor, own, False
        self._identity = Identity()
        self.uid = uid_of(self._identity.public)
        self.generations: Generations | None = None
        self.notice: Any = None
        """The notice for those who may come."""
        self.met = 0
        """The generation whose meeting this process has been to, whether all came or not."""
        self.callbacks: list[Callable[[], object]] = []
        """Called, on the reactor's thread, when somebody is gone or comes."""
        self._changed = threading.Condition()
        self._seen: tuple[int, int, tuple[str, ...]] = (-1, 0, ())
        self._links: dict[str, Link] = {}
        self._guests: dict[str, Link] = {}
        self._dialling: set[str] = set()
        self._watched: dict[str, Process | None] = {}
        self._paths: dict[str, list[str]] = {}
        """The sockets of processes of this host: one that is killed cannot remove its own."""
        self._mine = Renews(-1, {})
        self._renewing: dict[str, Renews] = {}
        self._cut: dict[str, Link] = {}
        """The connection that has ended, of members with which there is none."""
        self._vain: dict[str, int] = {}
        """Connections with a process that ended one after the other before it said anything."""
        self._door = Door(reactor, own, self._arrives)
        pid = os.getpid()
        self.seat = Seat(self.uid, self._door.addresses, kernel(), pid, started(pid), info, self._identity.public)

    # --- its owner's threads

    def begin(self, generation: Generation, met: int) -> None:
        """This process is a member: connect with the others."""
        self.met = met
        self.generations = Generations(self.uid, generation)
        self.reactor.soon(self._begun)

    @property
    def now(self) -> Generation:
        """The latest generation that this process knows of."""
        assert self.generations is not None
        return self.generations.now

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
        told = self._renewing.copy()
        if not told:  # nearly always
            return {}
        number, ranks = generation.number, generation.ranks
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

    def close(self) -> None:
        """Leave the job: the others hear it."""
        if not self.closed and not self.reactor.dead:
            self.reactor.soon(self._leave)

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
        for uid in [uid for uid in self.now.ranks if not self.reachable(uid) and uid != self.uid]:
            self._missed(uid)

    def _missed(self, uid: str) -> None:
        """The generation that meets here hears that it need not wait for this one."""
        job, links = self._door.meeting or ("", None)
        if links is not None and job == self.job_of(self.now) and uid in self.now.ranks:
            links.missed(self.now.ranks[uid], "its process has ended, or does not answer")

    def _arrives(self, word: Any, link: Link) -> None:
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

    def _comes(self, who: Iam, link: Link) -> None:
        """Somebody says that it is this member."""
        assert self.generations is not None
        seat = self.generations.seat(who.uid)
        if seat is None or not self._proves(who, seat.public, link):
            link.close()  # one that is not known yet comes again
            return
        self._linked(who.uid, link)

    def _proves(self, who: Iam, public: str, link: Link) -> bool:
        wanted = self._identity.proof(public, who.uid, self.uid, link.key) if public else ""
        return bool(wanted) and who.proof.isascii() and hmac.compare_digest(who.proof, wanted)

    def _begun(self) -> None:
        for seat in self.now.seats:
            if seat.uid not in self._watched and seat.uid != self.uid:
                self._watched[seat.uid] = self._watch(seat) if seat.host == self.seat.host else None
            if self.now.rank is not None and self.now.ranks[seat.uid] < self.now.rank:
                self._dial(seat)
        number = self.now.number
        self.reactor.later(max(COMES, self.reactor.lost_after), lambda: self._who_came(number))
        self._look()

    def _watch(self, seat: Seat) -> Process | None:
        self._paths[seat.uid] = [str(each[1]) for each in seat.addresses if each[0] == "unix"]
        return watch(self.reactor, seat.pid, seat.started, lambda: self._ended(seat.uid))

    def _who_came(self, number: int) -> None:
        """Members that have not come are as good as those whose connection has ended."""
        assert self.generations is not None
        for seat in self.generations.others():
            if seat.uid not in self._links and number == self.now.number:
                self._do(self.generations.unlinked(seat.uid))

    def _dial(self, seat: Seat) -> None:
        if seat.uid not in self._links and seat.uid not in self._dialling and not self.closed:
            self._dialling.add(seat.uid)
            self.reactor.aside("dial", partial(self._reach, seat))

    def _reach(self, seat: Seat) -> None:
        """On a thread of its own: until that member is reached, or is none any more."""
        pause = AGAIN[0]
        while not self._given_up(seat.uid):
            try:
                link = Link(self.reactor, reach_any(self.own, seat.addresses, PEER, DIAL))
            except Gone:
                self.reactor.soon(lambda: self._not_reached(seat.uid))
            except TransportError:
                pass  # `_lost` says how long its host may be silent
            else:
                proof = self._identity.proof(seat.public, self.uid, seat.uid, link.key) if seat.public else ""
                self.reactor.soon(partial(self._reached, seat.uid, link, proof))
                return
            time.sleep(pause)
            pause = min(2 * pause, AGAIN[1])
        self.reactor.soon(lambda: self._dialling.discard(seat.uid))

    def _given_up(self, uid: str) -> bool:
        generations = self.generations
        stays = generations is not None and uid not in generations.gone and uid in generations.now.ranks
        return not stays or self.closed or self.reactor.dead

    def _not_reached(self, uid: str) -> None:
        if uid not in self._links and self.generations is not None and not self.closed:
            self._do(self.generations.unlinked(uid))
            self._missed(uid)

    def _reached(self, uid: str, link: Link, proof: str) -> None:
        """That member speaks as soon as it knows who this is, so it is listened to before it is told."""
        link.send(pack(Iam(self.uid, proof)))
        self._linked(uid, link)
        link.start()

    def _linked(self, uid: str, link: Link) -> None:
        self._dialling.discard(uid)
        if self.closed or self.generations is None or uid in self.generations.gone:
            link.close()
            return
        if uid in self._links:
            self._links[uid].close()
        self._cut.pop(uid, None)
        self._links[uid] = link
        link.most = LIMIT
        link.on_message = lambda packed: self._hears(uid, packed)
        link.on_end = lambda how: self._lost(uid, link, how in GONE.values())
        if self._mine.generation == self.now.number:
            link.send(pack(self._mine))
        self._do(self.generations.linked(uid))

    def _hears(self, uid: str, packed: dict[str, Any]) -> None:
        assert self.generations is not None
        self._vain.pop(uid, None)
        try:
            if OWN.keys() & packed:
                self._is_told(uid, unpack(packed, OWN))
            else:
                self._do(self.generations.hear(uid, packed))
        except Malformed as why:
            log.warning("hocket: a member sent a message that is not understood: %s", why)

    def _is_told(self, uid: str, word: Renews) -> None:
        self._renewing[uid] = word
        with self._changed:
            self._changed.notify_all()

    def _lost(self, uid: str, link: Link, silent: bool) -> None:
        """Its connection has ended; if it is dead, a kernel will soon say so: its own one, or by refusing to connect.

        Else it is unreachable once its host has been silent for the limit, as it was if the system ended this one.
        """
        if self._links.get(uid) is not link:
            return
        del self._links[uid]
        self._cut[uid] = link
        if self.generations is None or self.closed:
            return
        self._do(self.generations.cut(uid))
        proof = PROOF[self._watched.get(uid) is None]
        limit = proof if silent else max(proof, self.reactor.lost_after)
        self.reactor.later(limit, lambda: self._not_reached(uid) if self._cut.get(uid) is link else None)
        seat = next((each for each in self.generations.others() if each.uid == uid), None)
        if seat is not None and self.now.rank is not None:
            # The lower rank dials too if the higher one does not: the others may have gone on without this process.
            higher = self.now.ranks[uid] < self.now.rank
            vain = self._vain[uid] = self._vain.get(uid, 0) + 1
            soon = min(AGAIN[0] * 2 ** min(vain, 9), AGAIN[1]) if vain > 1 else 0.0
            self.reactor.later(soon if higher else random.uniform(*OTHER_WAY), lambda: self._dial(seat))

    def _ended(self, uid: str) -> None:
        """The kernel of this host says so."""
        if self.generations is None:
            return
        self._do(self.generations.proven(uid))

    # --- newcomers

    def _enters(self, seat: Seat, link: Link) -> None:
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

    def _speaks(self, uid: str, link: Link) -> None:
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
        """It is gone for good, and what is kept for it."""
        process = self._watched.pop(uid)
        self._renewing.pop(uid, None)
        self._cut.pop(uid, None)
        if process is not None:
            self.reactor.remove(process, close=True)
        self._missed(uid)
        if uid in self._links:
            self._links.pop(uid).close()
        folder = next((os.path.dirname(str(each[1])) for each in self.seat.addresses if each[0] == "unix"), "")
        for path in self._paths.pop(uid, ()):
            remove_dead(path, folder)

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
