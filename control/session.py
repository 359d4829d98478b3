"""A rank's membership in its job: exchange values, report faults, hear of losses.

The owner's threads call the methods; the thread that takes messages (the reactor's) calls the owner.  Knows no
algorithms and moves no data.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from hocket.control.handshake import AuthError, prove
from hocket.control.link import ControlLink
from hocket.control.links import Links
from hocket.control.mending import Mending, Redialer
from hocket.control.protocol import messages as say
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.member import Heard, Member, Owner
from hocket.control.protocol.membership import Gone
from hocket.control.reactor import Reactor
from hocket.errors import ArgumentError, Error, PeerLostError, TimeoutError

log = logging.getLogger("hocket.control")
ANSWER = 1.0  # seconds that the coordinator has to say for whom it waits
GOODBYE = 1.0  # seconds that leaving waits for the coordinator's answer
LAST_OUT = 2.0  # seconds that rank 0, whose process holds the coordinator, waits for the others' goodbyes


class Session(ABC):
    """A `Member` whose owner's threads may wait.  What the others are told goes through `send`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._member = Member(rank)
        self._changed = threading.Condition()
        self._exchanges = 0

    @property
    def local_address(self) -> str | None:
        """The address of this host on its connection to the coordinator; None over a Unix socket."""
        return None

    @property
    def round_trip(self) -> float:
        """Seconds from this rank's host to rank 0's and back; 0: not known, or no network is between."""
        return 0.0

    @property
    def gone(self) -> Gone:
        """The ranks that were lost and that have left, since the ranks met."""
        return self._member.gone

    @property
    def ended(self) -> str:
        """The end of the connection to the coordinator, in words; "" while it is there."""
        return self._member.ended

    def own(self, owner: Owner) -> None:
        """From now on `owner` hears what comes."""
        self._member.owner = owner

    @abstractmethod
    def send(self, message: say.Message) -> None:
        """To the coordinator."""

    @abstractmethod
    def close(self, goodbye: say.Goodbye | None = None, patient: bool = False) -> None:
        """Say goodbye, and which calls this rank has finished.  Never raises, may be repeated.

        Takes at most about 3 s, as rank 0 waits for the others; if it is `patient`, until they have left.
        """

    def abandon(self) -> None:
        """Leave at once: this rank goes on in another generation.  Waits for nobody."""
        self.close()

    def exchange(self, value: Any, timeout: float, name: str = "") -> list[Any]:
        """Every rank's `value`, by rank.  All ranks call it, in the same order; the values are JSON.  2 messages.

        One with a `name`, which no other has, stands outside of that order.
        """
        number: say.Number = name
        if not name:
            number, self._exchanges = self._exchanges, self._exchanges + 1
        self._alive()
        self.send(say.Exchange(number, value))
        answer: say.Values | None = self._wait((say.Values, number), seconds=timeout)
        if answer is None:
            if self.gone or self.ended:
                raise self._loss(f"exchange {number} of the job")
            missing = self._ask(number)
            raise TimeoutError(
                f"rank {self.rank}: exchange {number} was not complete after {timeout:g} s: {_ranks(missing)} did not "
                "come to it; is it still running, or in another call?",
                missing,
            )
        if answer.error:
            raise ArgumentError(f"rank {self.rank}: exchange {number}: {answer.error}")
        return answer.values

    def report(self, fault: say.Fault) -> None:
        """Tell all ranks of a communicator that it failed."""
        self.send(fault)

    def stuck(self, call: say.Stuck) -> None:
        """Tell the coordinator that this rank has waited a while."""
        self.send(call)

    def ask(self, comm: str, ranks: list[int]) -> None:
        """Ask these ranks what they are doing on this communicator; the owner hears each one's answer."""
        self.send(say.Ask(comm, ranks))

    def open(self, transport: str) -> None:
        """Let all ranks open this transport, whatever they are doing: each owner hears of it, once."""
        self.send(say.OpenTransport(transport))

    def look(self, *ranks: int) -> None:
        """Raise PeerLostError if one of these ranks was lost; by default any, for waits while all meet."""
        if self.gone.lost.keys() & ranks if ranks else self.gone.lost:
            raise self._loss("the connection" if ranks else "the meeting of the ranks")

    def take(self, message: say.Message | say.Ended) -> None:
        """This came from the coordinator."""
        for answer in self._member.take(message):
            self.send(answer)
        with self._changed:
            self._changed.notify_all()

    def _alive(self) -> None:
        if self._member.closed:
            raise Error(f"rank {self.rank}: this session is closed, or this process is a fork of the rank's")

    def _wait(self, *kinds: Heard, seconds: float, absence: bool = True) -> Any:
        """The coordinator's answer; None when time is over, the connection has ended, or (`absence`) a rank is gone."""
        deadline, member = time.monotonic() + seconds, self._member
        with self._changed:
            while True:
                for kind in kinds:
                    if kind in member.heard:
                        return member.heard.pop(kind)
                left = deadline - time.monotonic()
                if left <= 0 or member.ended or (absence and self.gone):
                    return None
                self._changed.wait(left)

    def _ask(self, number: say.Number) -> list[int]:
        """Which ranks have not come to an exchange; [0], which should have told, if there is no answer."""
        self.send(say.Who(number))
        answer = self._wait((say.Missing, number), seconds=ANSWER)
        return [0] if answer is None else list(answer.ranks)

    def _loss(self, what: str) -> PeerLostError:
        lost, left = self.gone.lost, self.gone.left
        how = [f"rank {rank} was lost: {why}" for rank, why in sorted(lost.items())]
        how += [f"rank {rank} left" for rank in sorted(left)]
        gone = sorted(lost or left) or [0]  # ranks that left because others were lost are not to blame
        return PeerLostError(f"rank {self.rank}: {what} cannot complete: {'; '.join(how) or 'rank 0 is gone'}", gone)


class LinkSession(Session):
    """The session that `join` returns: a session over a control connection.  Rank 0 holds the coordinator too."""

    def __init__(
        self, reactor: Reactor, sock: socket.socket, rank: int, size: int, key: bytes | None, attempt: str = "",
        way: Redialer | None = None,
    ) -> None:  # fmt: skip
        super().__init__(rank)
        self.size, self.key, self.reactor = size, key or b"", reactor
        self.job_key = key
        """Newcomers prove that they have this key; `key` becomes the session's own."""
        self.epoch = 0  # tells this session from others of the job; made of the key in `_admit`
        self.home: str | None = None  # rank 0: where its coordinator listens; its own way there is a pair of sockets
        self.way = way
        """By it the connection to rank 0 is made again from the welcome on; else once `heal` was called.  It is
        given here, as the reactor's thread may hear the welcome before this call returns."""
        self._links: Links | None = None
        self._owns_reactor = False
        self._link = ControlLink(reactor, sock)
        self._link.keep()
        self._link.on_message, self._link.on_end = self._hear, lambda how: self.take(say.Ended(how))
        reactor.soon(self._link.start)
        self.send(say.Join(rank, size, os.getpid(), socket.gethostname(), attempt))

    @property
    def local_address(self) -> str | None:
        return self.home or self._link.local_address

    @property
    def round_trip(self) -> float:
        return self._link.round_trip

    def send(self, message: say.Message) -> None:
        self._link.send(say.pack(message))

    def heal(self, way: Redialer, ranks: Collection[int]) -> None:
        """From now on `way` makes broken control connections with these ranks again: rank 0's, or with rank 0."""
        if self._links is not None:
            links = self._links
            self.reactor.soon(lambda: links.heal(way, ranks))
        elif 0 in ranks:
            Mending(self.reactor, self._link, way, 0, dials=True)

    def again(self, rank: int, sock: socket.socket) -> None:
        """A rank's new control connection has come here.  On the reactor's thread."""
        if self._links is not None:
            self._links.again(rank, sock)
        else:
            sock.close()

    def asked(self, rank: int) -> None:
        """Rank 0 has lost this rank's control connection.  On the reactor's thread."""
        if self._links is None and rank == 0:
            self._link.ask()

    def close(self, goodbye: say.Goodbye | None = None, patient: bool = False) -> None:
        if self._member.closed or self.reactor.dead:
            return
        self._member.closed = True
        try:
            self.send(goodbye or say.Goodbye({}))
            if not self.reactor.inside():
                self._wait((say.Bye, 0), seconds=GOODBYE, absence=False)
                if self._links is not None:
                    self._links.wait_empty(None if patient else LAST_OUT)
            self._shut()
        except Exception:
            log.debug("hocket: leaving the job", exc_info=True)

    def abandon(self) -> None:
        if not (self._member.closed or self.reactor.dead):
            self._member.closed = True
            self.send(say.Goodbye({}))
            if self._links is not None:
                self.reactor.soon(self._links.part)
            self._shut()

    def _shut(self) -> None:
        self._link.close()
        if self._links is not None:
            self.reactor.soon(self._links.shut)
        if self._owns_reactor:
            self.reactor.close()

    def _hear(self, packed: dict[str, Any]) -> None:
        try:
            message = say.unpack(packed)
        except Malformed as why:
            log.warning("hocket: rank %d got a control message that it cannot read: %s", self.rank, why)
        else:
            if self.way is not None and isinstance(message, say.Welcome):
                self.heal(self.way, (0,))
            self.take(message)

    def _alive(self) -> None:
        super()._alive()
        if self.reactor.dead:
            raise Error(f"rank {self.rank}: this process is a fork of the rank's")

    def _admit(self, welcome: say.Welcome) -> None:
        """Take the session's key, so that a former session's is void.

        It is derived from the job's key and the coordinator's salt.  Only where there is no key (a Unix socket, where
        the user id is the proof) does the coordinator draw it: a rank that has one takes none from anybody.
        """
        drawn, wanted = (welcome.salt, "salt") if self.key else (welcome.key, "key")
        try:
            salt = bytes.fromhex(drawn)
        except ValueError:
            salt = b""
        if not salt:
            theirs = "no secret, and this rank has one" if self.key else "a secret, and this rank has none"
            raise AuthError(f"rank {self.rank}: the coordinator's welcome holds no {wanted}: it has {theirs}")
        self.key = hmac.digest(self.key, b"session" + salt, "sha256") if self.key else salt
        self.epoch = int.from_bytes(prove(self.key, b"epoch", b"")[:4], "big")
        if self._links is not None:
            self._links.epoch = self.epoch


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
