"""This process's connections with the job's other members: made, proven, watched, made again.

The higher rank dials.  A connection that has ended is made again, from both sides; until then the member is cut off,
and after a while unreachable, or its kernel says that it is dead.  All but `_reach` runs on the reactor's thread.
"""

from __future__ import annotations

import hmac
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from hocket.control.addresses import remove_dead
from hocket.control.elastic.door import Iam
from hocket.control.elastic.processes import Process, watch
from hocket.control.elastic.proving import ProcessKey
from hocket.control.elastic.reaching import PEER, NobodyListens, Own, reach_any
from hocket.control.link import GONE, LIMIT, ControlLink
from hocket.control.protocol.generations import Generation, Generations, To
from hocket.control.protocol.messages import pack
from hocket.control.protocol.seats import Seat, uid_of
from hocket.control.protocol.words import Claim
from hocket.control.reactor import Reactor
from hocket.errors import TransportError

DIAL = 1.0
"""Seconds for one attempt to reach a member."""
AGAIN = (0.02, 0.5)
"""Seconds between two attempts, at first and at most."""
PROOF = 2.0, 0.3
"""Seconds in which a kernel may prove that a process is dead whose connection has ended: this host's, another's.

This host's proves it at once, but where all cores are busy not within half a second."""
OTHER_WAY = 0.3, 0.6
"""Seconds after which the lower rank dials, at random: two that dial each other at once close both connections."""
HEARD = 0.5
"""Seconds that a goodbye waits for a connection that is being made again."""
BACK = DIAL + AGAIN[1]
"""Seconds, at most, from a member's way back to that of the next one, where the same cable was out."""


class MemberLinks(ABC):
    """The connections; what is said on them, and what follows from their ends, is Mesh's."""

    seat: Seat
    """This process's own."""

    def __init__(self, reactor: Reactor, own: Own) -> None:
        self.reactor, self.own, self.closed = reactor, own, False
        self._identity = ProcessKey()
        self.uid = uid_of(self._identity.public)
        self.generations: Generations | None = None
        self._links: dict[str, ControlLink] = {}
        self._dialling: set[str] = set()
        self._watched: dict[str, Process | None] = {}
        self._paths: dict[str, list[str]] = {}
        """The sockets of processes of this host: one that is killed cannot remove its own."""
        self._cut: dict[str, ControlLink] = {}
        """The connection that has ended, of members with which there is none."""
        self._spared: set[str] = set()
        """The members of these that were away, and are waited for once more."""
        self._vain: dict[str, int] = {}
        """Connections with a process that ended one after the other before it said anything."""

    @property
    def now(self) -> Generation:
        """The latest generation that this process knows of."""
        assert self.generations is not None
        return self.generations.now

    @abstractmethod
    def _do(self, instructions: Sequence[To | Claim]) -> None:
        """Follow them, and look what has changed."""

    @abstractmethod
    def _greet(self, link: ControlLink) -> None:
        """There is a connection: say what it missed."""

    @abstractmethod
    def _hears(self, uid: str, packed: dict[str, Any]) -> None:
        """A member's message."""

    @abstractmethod
    def _leave(self) -> None:
        """Say goodbye, and close."""

    @abstractmethod
    def _missed(self, uid: str) -> None:
        """The generation that meets here hears that it need not wait for this one."""

    def close(self) -> None:
        """Leave the job: the others hear it, also where a connection is being made again just now."""
        until = time.monotonic() + HEARD
        while self._broken() and time.monotonic() < until and not (self.reactor.dead or self.reactor.inside()):
            time.sleep(AGAIN[0])
        if not self.closed and not self.reactor.dead:
            self.reactor.soon(self._leave)

    def _broken(self) -> bool:
        """Is there a member whose connection may come back in a moment?"""
        generations = self.generations
        return generations is not None and not self._cut.keys() <= generations.away | generations.gone.keys()

    def _comes(self, who: Iam, link: ControlLink) -> None:
        """Somebody says that it is this member."""
        assert self.generations is not None
        seat = self.generations.seat(who.uid)
        if seat is None or not self._proves(who, seat.public, link):
            link.close()  # one that is not known yet comes again
            return
        self._linked(who.uid, link)

    def _proves(self, who: Iam, public: str, link: ControlLink) -> bool:
        wanted = self._identity.proof(public, who.uid, self.uid, link.key) if public else ""
        return bool(wanted) and who.proof.isascii() and hmac.compare_digest(who.proof, wanted)

    def _watch(self, seat: Seat) -> Process | None:
        self._paths[seat.uid] = [str(each[1]) for each in seat.addresses if each[0] == "unix"]
        return watch(self.reactor, seat.pid, seat.started, lambda: self._ended(seat.uid))

    def _who_came(self, number: int) -> None:
        """Members that have never come are as those that have not come back."""
        assert self.generations is not None
        for seat in self.generations.others():
            if seat.uid not in self._links.keys() | self._cut.keys() and number == self.now.number:
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
                link = ControlLink(self.reactor, reach_any(self.own, seat.addresses, PEER, DIAL))
            except NobodyListens:
                self.reactor.soon(lambda: self._refused(seat.uid))
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

    def _refused(self, uid: str) -> None:
        """Nobody listens there.  A killed process loses its sockets first, so its kernel has time to say that."""
        if self._watched.get(uid) is None:
            self._not_reached(uid)
        else:
            self.reactor.later(PROOF[0], partial(self._not_back, uid, self._cut.get(uid)))

    def _not_reached(self, uid: str) -> None:
        if uid not in self._links and self.generations is not None and not self.closed:
            self._do(self.generations.unlinked(uid))
            self._missed(uid)

    def _reached(self, uid: str, link: ControlLink, proof: str) -> None:
        """That member speaks as soon as it knows who this is, so it is listened to before it is told."""
        link.send(pack(Iam(self.uid, proof)))
        self._linked(uid, link)
        link.start()

    def _linked(self, uid: str, link: ControlLink) -> None:
        self._dialling.discard(uid)
        if self.closed or self.generations is None or uid in self.generations.gone:
            link.close()
            return
        if uid in self._links:
            self._links[uid].close()
        self._cut.pop(uid, None)
        self._spared.discard(uid)
        self._links[uid] = link
        link.most = LIMIT
        link.on_message = lambda packed: self._hears(uid, packed)
        link.on_end = lambda how: self._lost(uid, link, how in GONE.values())
        self._greet(link)
        if uid in self.generations.away:
            self._spare()
        self._do(self.generations.linked(uid))

    def _spare(self) -> None:
        """One that was away is back.  If it was this process's own cable, the others come in a moment, too: without
        them it would go on with the first one that does, and leave out all that have waited."""
        assert self.generations is not None
        for uid, link in list(self._cut.items()):
            if uid in self.generations.away and uid not in self._spared:
                self._spared.add(uid)
                self._do(self.generations.spare(uid))
                self.reactor.later(BACK, partial(self._not_back, uid, link))

    def _not_back(self, uid: str, link: ControlLink | None) -> None:
        if self._cut.get(uid) is link:
            self._not_reached(uid)

    def _lost(self, uid: str, link: ControlLink, silent: bool) -> None:
        """A member's connection has ended; if it is dead, a kernel will soon say so: this host's, or one that refuses.

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
        self.reactor.later(limit, partial(self._not_back, uid, link))
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

    def _forget(self, uid: str) -> None:
        """Drop what is kept for a member that is gone for good."""
        process = self._watched.pop(uid)
        self._cut.pop(uid, None)
        self._spared.discard(uid)
        if process is not None:
            self.reactor.remove(process, close=True)
        self._missed(uid)
        if uid in self._links:
            self._links.pop(uid).close()
        folder = next((os.path.dirname(str(each[1])) for each in self.seat.addresses if each[0] == "unix"), "")
        for path in self._paths.pop(uid, ()):
            remove_dead(path, folder)
