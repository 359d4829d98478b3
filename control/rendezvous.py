"""Meeting of the ranks of a job: rank 0 opens the coordinator at an address all know, the others come to it.

The address may name several TCP ports: rank 0 takes the first free one, the others try them in turn until one proves
itself to be this job's coordinator, so a stranger on a port costs a moment and confuses nobody.  The coordinator stops
listening when all are there.  Cost: one connection and one round of messages a rank.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hocket.arguments import some_of
from hocket.control import encryption
from hocket.control.dial import dial, show
from hocket.control.handshake import Address, AuthError, Connection, Hello
from hocket.control.links import Links
from hocket.control.listener import Listener
from hocket.control.mending import Redialer
from hocket.control.protocol.member import Heard
from hocket.control.protocol.membership import PLAIN, PURPOSE
from hocket.control.protocol.messages import JOIN, Missing, Refused, Welcome
from hocket.control.reactor import Reactor
from hocket.control.session import LinkSession
from hocket.errors import ArgumentError, PeerLostError, TimeoutError, TransportError

log = logging.getLogger("hocket.control")
Meeting = tuple[str, str] | tuple[str, str, int | Sequence[int]]
KNOCK = 1.0  # seconds for one candidate to prove itself
WRONG_KEY = 5.0  # seconds after which "everyone there holds another key" is believed
STILL_WAITING = 10.0  # seconds after which a rank logs for whom it waits
AGAIN = 0.05  # seconds between two rounds over the candidates
BESIDE = 1.0  # seconds (or a quarter of its time) after which a rank also looks where rank 0 listens besides
SHOWN = 4  # places that an error names
RETURN = 0.5  # seconds in which a coordinator that was there and has gone may come again


class CoordinatorLost(TransportError):
    """The coordinator took this rank in, and went before all were there."""


class Identity(NamedTuple):
    """A rank's identity, and its proof that it belongs to the job."""

    rank: int
    size: int
    job: str
    key: bytes | None
    """None: the user id alone is the proof, on a unix path only."""
    encrypt: bool = False
    """Are control connections over TCP encrypted?  On all ranks or on none."""


class Where(NamedTuple):
    """Where rank 0 is looked for."""

    address: Meeting
    also: Sequence[Meeting] = ()
    """Where it listens besides, or may listen."""
    told: bool = True
    """The caller or a launcher gave the address; else it was found from MASTER_ADDR, or by the temporary folder."""


def join(who: Identity, where: Where, timeout: float, reactor: Reactor | None = None) -> LinkSession:
    """Meet all ranks of the job.

    Raises TimeoutError (names the ranks that did not come), ArgumentError (this rank is taken, another size),
    AuthError (another key).
    """
    if not 0 <= who.rank < who.size:
        raise ArgumentError(f"rank {who.rank} is not one of 0..{who.size - 1}")
    if who.key is None and (where.address[0] != "unix" or where.also):
        raise ArgumentError("a rendezvous over TCP needs a key: set HOCKET_SECRET or HOCKET_SECRET_FILE on every rank")
    owned = reactor is None
    reactor = reactor or Reactor()
    try:
        session = Meet(who, where, timeout, reactor).meet()
    except BaseException:
        if owned:
            reactor.close()
        raise
    session._owns_reactor = owned
    return session


class Meet:
    """One rank's attempt to join.  (store.py has another kind.)"""

    patience = WRONG_KEY
    """Seconds after which a rank that meets only other jobs' coordinators gives up."""

    def __init__(self, who: Identity, where: Where | None, timeout: float, reactor: Reactor) -> None:
        self.who, self.timeout, self.reactor = who, timeout, reactor
        self.deadline = time.monotonic() + timeout
        self.attempt = secrets.token_hex(8)
        self.way: Redialer | None = None
        """The session's."""
        self.candidates = _candidates(where.address) if where else []
        self.also = [each for meeting in (where.also if where else ()) for each in _candidates(meeting)]
        self.told = where is not None and where.told
        self.listening: list[Address] = []
        """Where this rank listens, if it is rank 0."""

    def meet(self) -> LinkSession:
        return self.open() if self.who.rank == 0 else self.find()

    def addresses(self) -> list[Address]:
        """Where rank 0 may be, in a round of looking for it: first where strangers cost no time."""
        soon = self.deadline - time.monotonic() > self.timeout - min(BESIDE, self.timeout / 4)
        return self.candidates if soon else [*self.candidates, *self.also]

    # --- rank 0 ---

    def open(self) -> LinkSession:
        links = Links(self.reactor, self.who.size, self.who.job, keyed=self.who.key is not None)
        listeners = self.listen(links) if self.who.size > 1 else []
        self.listening = [each.address for each in listeners]
        links.complete = lambda: _close(listeners)
        mine, its = socket.socketpair()
        self.reactor.soon(lambda: links.take(its, Hello(0, PURPOSE, self.who.job)))
        session = self.session(mine)
        session._links = links
        session.home = next((str(each.address[1]) for each in listeners if each.address[0] == "tcp"), None)
        try:
            return self._settle(session)
        except BaseException:
            self.reactor.soon(links.late)  # the others learn it now, not when their own time is over
            _close(listeners)
            session.close()
            raise

    def session(self, sock: socket.socket) -> LinkSession:
        return LinkSession(self.reactor, sock, self.who.rank, self.who.size, self.who.key, self.attempt, self.way)

    def listen(self, links: Links) -> list[Listener]:
        """Where the ranks meet, and beside it, if that can be."""
        if not self.also:
            return [self._first_free(links)]
        listeners = []
        for take in (self._first_free, self._beside):
            try:
                listeners.append(take(links))
            except TransportError as why:
                failed = why
                log.info("the ranks do not meet there: %s", why)
        if not listeners:
            raise failed
        return listeners

    def _beside(self, links: Links) -> Listener:
        failed = TransportError("the rendezvous address has no port: expected tcp:host:port")
        for address in self.also:
            try:
                return Listener(self.reactor, address, self.who.key, self.taker(links))
            except (TransportError, ArgumentError) as why:
                failed = TransportError(str(why))
        raise failed

    def _first_free(self, links: Links) -> Listener:
        """Take the first free candidate; while all are taken (a former job may be leaving) go round."""
        for address in itertools.cycle(self.candidates):
            try:
                listener = Listener(self.reactor, address, self.who.key, self.taker(links))
                if address != self.candidates[0]:
                    log.info("%s is taken, so the ranks meet at %s", show(self.candidates[0]), show(address))
                return listener
            except TransportError as why:
                self._look_for_double(address, why)
                if why.errno != errno.EADDRINUSE or time.monotonic() > self.deadline:
                    raise
                if address == self.candidates[-1]:
                    time.sleep(AGAIN)
        raise ArgumentError("the rendezvous address has no port: expected tcp:host:port")

    def taker(self, links: Links) -> Callable[[Connection, Hello], object]:
        """A function that takes a connection that has proven itself."""
        if not self.who.encrypt:
            return links.take

        def take(sock: Connection, hello: Hello) -> None:
            if sock.family == socket.AF_UNIX:
                links.take(sock, hello)
            elif not hello.purpose.startswith(encryption.MARK):
                links.take(sock, dataclasses.replace(hello, purpose=PLAIN))  # to be refused
            else:
                key = encryption.connection_key(sock.key, PURPOSE, hello.rank, 0)
                known = dataclasses.replace(hello, purpose=hello.purpose.removeprefix(encryption.MARK))
                encryption.secure_accepted(
                    self.reactor, sock, key, lambda encrypted: links.take(encrypted, known),
                    lambda why: log.warning("hocket: rank %d came to the rendezvous: %s", hello.rank, why),
                )  # fmt: skip

        return take

    def _look_for_double(self, address: Address, why: TransportError) -> None:
        """If the taken address is held by this very job's coordinator, then there are two ranks 0."""
        if why.errno != errno.EADDRINUSE:
            return
        try:
            session = self.knock(address)
        except TransportError:
            return
        answer: Refused | None = session._wait((Refused, 0), seconds=KNOCK)
        session._link.close()
        if answer and not answer.foreign:
            raise ArgumentError(f"{show(address)}: {answer.why}")

    # --- the others ---

    def find(self) -> LinkSession:
        started, last, stranger, gone = time.monotonic(), "not tried", "", 0.0
        doubted = started  # since when all servers that answered were strangers
        addresses: list[Address] = []
        while time.monotonic() < self.deadline:
            strangers, addresses = 0, self.addresses()
            for address in addresses:
                try:
                    return self._settle(self.knock(address))
                except AuthError as why:
                    if not (stranger and isinstance(why, encryption.SilentEnd)):  # what was said tells more than an end
                        last = stranger = str(why)
                    strangers += 1
                except TransportError as why:
                    last = str(why)
                    gone = gone or (time.monotonic() if isinstance(why, CoordinatorLost) else 0.0)
            if gone and time.monotonic() - gone > RETURN:
                raise PeerLostError(f"rank {self.who.rank}: rank 0 was lost while the ranks met: {last}", [0])
            if not addresses or strangers < len(addresses):
                doubted = time.monotonic()
            if time.monotonic() - doubted > self.patience:
                raise AuthError(last)
            # Ranks of one host start together: soon after the first look rank 0 is there.
            time.sleep(min(AGAIN, (time.monotonic() - started) / 4 + 0.001))
        if stranger:  # rather the one that answered with another key than those that did not answer
            raise AuthError(f"rank {self.who.rank}: rank 0 was not found within {self.timeout:g} s: {stranger}")
        raise TimeoutError(
            f"rank {self.who.rank}: {self.nobody(addresses)} within {self.timeout:g} s{_at(addresses)} "
            f"(is it running? timeout= or HOCKET_TIMEOUT is the limit); the last attempt: {last}"
            f"{self.hint(addresses)}",
            [0],
        )

    def nobody(self, addresses: list[Address]) -> str:
        """The failure to meet, for an error's text."""
        return f"rank 0 of job {self.who.job!r} was not found"

    def through(self) -> str:
        """The place that told the others where this rank is, for an error's text; "": they know it."""
        return ""

    def hint(self, addresses: Sequence[Address]) -> str:
        """The advice if rank 0 cannot be reached from another host at any of these; else ""."""
        here = [kind != "tcp" or place.startswith(("127.", "localhost", "::1")) for kind, place, *_ in addresses]
        folder = next((os.path.dirname(place) for kind, place, *_ in addresses if kind == "unix"), "")
        if not all(here) or not addresses or (folder and self.told):
            return ""
        same = f"; the ranks of a host meet in {folder}: it must be the same for all of them (TMPDIR, XDG_RUNTIME_DIR)"
        same += "" if self.who.key else ", or set HOCKET_SECRET on every rank, and they meet at MASTER_ADDR too"
        elsewhere = "give" if self.told else "set MASTER_ADDR to"
        return (
            f"{same if folder else ''}; that address is this host's own (loopback): if rank 0 is on another host, "
            f"{elsewhere} an address of it that is reached from here, such as 10.0.0.1, on every rank"
        )

    def knock(self, address: Address) -> LinkSession:
        left = max(0.05, min(KNOCK, self.deadline - time.monotonic()))
        return self.session(self.reach(address, PURPOSE, left))

    def reach(
        self, address: Address, purpose: str, seconds: float, look: Callable[[], object] = lambda: None
    ) -> socket.socket:
        """A proven connection with rank 0.  TransportError."""
        who, encrypt = self.who, self.who.encrypt and address[0] == "tcp"
        sock = dial(address, who.key, Hello(who.rank, encryption.MARK * encrypt + purpose, who.job), seconds, look)
        if not encrypt:
            return sock
        return encryption.secured_dial(sock, encryption.connection_key(sock.key, PURPOSE, who.rank, 0), seconds, look)

    # --- all ---

    def _settle(self, session: LinkSession) -> LinkSession:
        """Wait for the coordinator's welcome.  TransportError: this was another server, or it died; go on looking."""
        try:
            welcome = self._welcome(session)
        except BaseException:
            if session.rank:
                session.close()
            raise
        session._admit(welcome)
        return session

    def _welcome(self, session: LinkSession) -> Welcome:
        answers: tuple[Heard, ...] = (Welcome, 0), (Refused, 0), (Missing, JOIN)
        who, left = self.who, self.deadline - time.monotonic()
        answer: Welcome | Refused | Missing | None = session._wait(*answers, seconds=min(left, STILL_WAITING))
        if answer is None and left > STILL_WAITING and not session.ended and not session.gone:
            missing = session._ask(JOIN)
            log.warning("rank %d: of %d ranks, %s have not come yet", who.rank, who.size, missing)
            answer = session._wait(*answers, seconds=self.deadline - time.monotonic())
            while isinstance(answer, Missing) and not answer.over:  # the answer to that question, which came late
                answer = session._wait(*answers, seconds=self.deadline - time.monotonic())
        if not isinstance(answer, (Welcome, Refused)):
            session.look()
        if answer is None and not session.ended:
            answer = Missing(JOIN, session._ask(JOIN))
        if answer is None:
            raise CoordinatorLost("the coordinator closed the connection before the job was complete")
        if isinstance(answer, Refused):
            raise (TransportError if answer.foreign else ArgumentError)(f"rank {who.rank}: {answer.why}")
        if isinstance(answer, Missing):
            raise TimeoutError(
                f"rank {who.rank}: ranks {answer.ranks} did not come within {self.timeout:g} s (of {who.size} ranks)"
                f"{_at(self.listening)}{self.through()}: "
                "were they started, with the same address? (timeout= or HOCKET_TIMEOUT is the limit)",
                answer.ranks,
            )
        return answer


def _at(addresses: Sequence[Address]) -> str:
    """Where, for an error's text: each place once, with its first and last port."""
    ports: dict[str, list[int]] = {}
    for kind, place, *port in addresses:
        ports.setdefault(f"{kind}:{place}", []).extend(port)
    ends = {place: sorted({*some[:1], *some[-1:]}) for place, some in ports.items()}
    shown = [place + (f":{'-'.join(map(str, some))}" if some else "") for place, some in ends.items()]
    return f" at {some_of(shown, SHOWN)}" if shown else ""


def _close(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        listener.close()


def _candidates(address: Meeting) -> list[Address]:
    if address[0] == "unix":
        return [("unix", str(address[1]))]
    ports = address[2]  # type: ignore[misc]
    return [("tcp", str(address[1]), port) for port in ([ports] if isinstance(ports, int) else ports)]
