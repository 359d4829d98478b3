"""How the ranks of a job find each other: rank 0 opens the coordinator at an address all know, the others come to it.

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
import socket
import time
from collections.abc import Callable, Sequence

from hocket.control import encryption
from hocket.control.coordinator import JOIN, PLAIN, PURPOSE, Coordinator
from hocket.control.dial import dial, show
from hocket.control.handshake import Address, AuthError, Connection, Hello
from hocket.control.listener import Listener
from hocket.control.reactor import Reactor
from hocket.control.session import Session
from hocket.errors import ArgumentError, PeerLostError, TimeoutError, TransportError

log = logging.getLogger("hocket.control")
Meeting = tuple[str, str] | tuple[str, str, int | Sequence[int]]
KNOCK = 1.0  # seconds for one candidate to prove itself
WRONG_KEY = 5.0  # seconds after which "everyone there holds another key" is believed
STILL_WAITING = 10.0  # seconds after which a rank logs for whom it waits
AGAIN = 0.05  # seconds between two rounds over the candidates
BESIDE = 1.0  # seconds (or a quarter of its time) after which a rank also looks where rank 0 listens besides
RETURN = 0.5  # seconds in which a coordinator that was there and has gone may come again


class CoordinatorLost(TransportError):
    """The coordinator took this rank in, and went before all were there."""


def join(
    rank: int,
    size: int,
    address: Meeting,
    key: bytes | None,
    job: str,
    timeout: float,
    reactor: Reactor | None = None,
    encrypt: bool = False,
    also: Meeting | None = None,
    told: bool = True,
) -> Session:
    """Meet all `size` ranks of `job` at `address`.  key None: the user id alone is the proof, on a unix path only.
    encrypt: control connections over TCP are encrypted, on all ranks or on none.  also: where rank 0 listens besides.
    told: the caller or a launcher gave the address; else it was found from MASTER_ADDR, or by the temporary folder.

    Raises TimeoutError (names the ranks that did not come), ArgumentError (this rank is taken, another size),
    AuthError (another key).
    """
    if not 0 <= rank < size:
        raise ArgumentError(f"rank {rank} is outside of 0..{size - 1}")
    if key is None and (address[0] != "unix" or also is not None):
        raise ArgumentError("a rendezvous over TCP needs a key: set HOCKET_SECRET or HOCKET_SECRET_FILE on every rank")
    owned = reactor is None
    reactor = reactor or Reactor()
    meet = Meet(rank, size, _candidates(address), key, job, timeout, reactor, encrypt, _candidates(also), told)
    try:
        session = meet.open() if rank == 0 else meet.find()
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

    def __init__(
        self, rank: int, size: int, candidates: list[Address], key: bytes | None, job: str, timeout: float,
        reactor: Reactor, encrypt: bool = False, also: Sequence[Address] = (), told: bool = True,
    ) -> None:  # fmt: skip
        self.encrypt, self.also, self.told = encrypt, also, told
        self.rank, self.size, self.candidates, self.key, self.job = rank, size, candidates, key, job
        self.deadline, self.timeout, self.reactor = time.monotonic() + timeout, timeout, reactor

    def addresses(self) -> list[Address]:
        """Where rank 0 may be, in a round of looking for it: first where strangers cost no time."""
        soon = self.deadline - time.monotonic() > self.timeout - min(BESIDE, self.timeout / 4)
        return self.candidates if soon else [*self.candidates, *self.also]

    # --- rank 0 ---

    def open(self) -> Session:
        coordinator = Coordinator(self.reactor, self.size, self.job, keyed=self.key is not None)
        listeners = self.listen(coordinator) if self.size > 1 else []
        coordinator.complete = lambda: _close(listeners)
        mine, its = socket.socketpair()
        self.reactor.soon(lambda: coordinator.take(its, Hello(0, PURPOSE, self.job)))
        session = Session(self.reactor, mine, 0, self.size, self.key)
        session._coordinator = coordinator
        session.home = next((str(each.address[1]) for each in listeners if each.address[0] == "tcp"), None)
        try:
            return self._settle(session)
        except BaseException:
            self.reactor.soon(coordinator.late)  # the others learn it now, not when their own time is over
            _close(listeners)
            session.close()
            raise

    def listen(self, coordinator: Coordinator) -> list[Listener]:
        """Where the ranks meet, and beside it, if that can be."""
        if not self.also:
            return [self._first_free(coordinator)]
        found = []
        for take in (self._first_free, self._beside):
            try:
                found.append(take(coordinator))
            except TransportError as why:
                failed = why
                log.info("the ranks do not meet there: %s", why)
        if not found:
            raise failed
        return found

    def _beside(self, coordinator: Coordinator) -> Listener:
        failed = TransportError("the rendezvous address has no port")
        for address in self.also:
            try:
                return Listener(self.reactor, address, self.key, self.taker(coordinator))
            except (TransportError, ArgumentError) as why:
                failed = TransportError(str(why))
        raise failed

    def _first_free(self, coordinator: Coordinator) -> Listener:
        """Take the first free candidate; while all are taken (a former job may be leaving) go round."""
        for address in itertools.cycle(self.candidates):
            try:
                found = Listener(self.reactor, address, self.key, self.taker(coordinator))
                if address != self.candidates[0]:
                    log.info("%s is taken, so the ranks meet at %s", show(self.candidates[0]), show(address))
                return found
            except TransportError as why:
                self._look_for_double(address, why)
                if why.errno != errno.EADDRINUSE or time.monotonic() > self.deadline:
                    raise
                if address == self.candidates[-1]:
                    time.sleep(AGAIN)
        raise ArgumentError("the rendezvous address has no port")

    def taker(self, coordinator: Coordinator) -> Callable[[Connection, Hello], object]:
        """What takes a connection that has proven itself."""
        if not self.encrypt:
            return coordinator.take

        def take(sock: Connection, hello: Hello) -> None:
            if sock.family == socket.AF_UNIX:
                coordinator.take(sock, hello)
            elif hello.purpose != encryption.MARK + PURPOSE:
                coordinator.take(sock, dataclasses.replace(hello, purpose=PLAIN))  # to be refused
            else:
                key = encryption.connection_key(sock.key, PURPOSE, hello.rank, 0)
                known = dataclasses.replace(hello, purpose=PURPOSE)
                encryption.secure_accepted(
                    self.reactor, sock, key, lambda made: coordinator.take(made, known),
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
        answer = session._wait("refused", seconds=KNOCK)
        session._link.close()
        if answer and not answer["foreign"]:
            raise ArgumentError(f"{show(address)}: {answer['refused']}")

    # --- the others ---

    def find(self) -> Session:
        started, last, stranger, gone = time.monotonic(), "not tried", "", 0.0
        doubted = started  # since when all servers that answered were strangers
        addresses: list[Address] = []
        while time.monotonic() < self.deadline:
            strangers, addresses = 0, self.addresses()
            for address in addresses:
                try:
                    return self._settle(self.knock(address))
                except AuthError as why:
                    if not (stranger and isinstance(why, encryption.Ended)):  # what was said tells more than an end
                        last = stranger = str(why)
                    strangers += 1
                except TransportError as why:
                    last = str(why)
                    gone = gone or (time.monotonic() if isinstance(why, CoordinatorLost) else 0.0)
            if gone and time.monotonic() - gone > RETURN:
                raise PeerLostError(f"rank {self.rank}: rank 0 was lost while the ranks met: {last}", [0])
            if not addresses or strangers < len(addresses):
                doubted = time.monotonic()
            if time.monotonic() - doubted > self.patience:
                raise AuthError(last)
            # Ranks of one host start together: soon after the first look rank 0 is there.
            time.sleep(min(AGAIN, (time.monotonic() - started) / 4 + 0.001))
        if stranger:  # rather the one that answered with another key than those that did not answer
            raise AuthError(f"rank {self.rank}: rank 0 was not found within {self.timeout:g} s: {stranger}")
        raise TimeoutError(
            f"rank {self.rank}: {self.nobody(addresses)} within {self.timeout:g} s "
            f"(is it running? timeout= or HOCKET_TIMEOUT is the limit); the last attempt: {last}"
            f"{self.hint(addresses)}",
            [0],
        )

    def nobody(self, addresses: list[Address]) -> str:
        """What did not happen, for an error's text."""
        return f"rank 0 of job {self.job!r} was not found"

    def hint(self, addresses: Sequence[Address]) -> str:
        """What to do if rank 0 cannot be reached from another host at any of these; else ""."""
        here = [kind != "tcp" or place.startswith(("127.", "localhost", "::1")) for kind, place, *_ in addresses]
        folder = next((os.path.dirname(place) for kind, place, *_ in addresses if kind == "unix"), "")
        if not all(here) or not addresses or (folder and self.told):
            return ""
        same = f"; the ranks of a host meet in {folder}: it must be the same for all of them (TMPDIR, XDG_RUNTIME_DIR)"
        same += "" if self.key else ", or set HOCKET_SECRET on every rank, and they meet at MASTER_ADDR too"
        elsewhere = "give" if self.told else "set MASTER_ADDR to"
        return (
            f"{same if folder else ''}; that address is this host's own (loopback): if rank 0 is on another host, "
            f"{elsewhere} an address of it that is reached from here, such as 10.0.0.1, on every rank"
        )

    def knock(self, address: Address) -> Session:
        left = max(0.05, min(KNOCK, self.deadline - time.monotonic()))
        encrypt = self.encrypt and address[0] == "tcp"
        hello = Hello(self.rank, encryption.MARK * encrypt + PURPOSE, self.job)
        sock = dial(address, self.key, hello, left)
        if encrypt:
            key = encryption.connection_key(sock.key, PURPOSE, self.rank, 0)
            return Session(self.reactor, encryption.secured_dial(sock, key, left), self.rank, self.size, self.key)
        return Session(self.reactor, sock, self.rank, self.size, self.key)

    # --- all ---

    def _settle(self, session: Session) -> Session:
        """Wait for the coordinator's welcome.  TransportError: this was another server, or it died; go on looking."""
        try:
            welcome = self._welcome(session)
        except BaseException:
            if session.rank:
                session.close()
            raise
        session._admit(welcome)
        return session

    def _welcome(self, session: Session) -> dict[str, str]:
        left = self.deadline - time.monotonic()
        answer = session._wait("welcome", "refused", ("who", JOIN), seconds=min(left, STILL_WAITING))
        if answer is None and left > STILL_WAITING and not session._ended_how:
            missing = session._ask(JOIN)
            log.warning("rank %d: of %d ranks, %s have not come yet", self.rank, self.size, missing)
            left = self.deadline - time.monotonic()
            answer = session._wait("welcome", "refused", ("who", JOIN), seconds=left)
        if answer is None or "missing" in answer:
            session.look()
        if answer is None and not session._ended_how:
            answer = {"missing": session._ask(JOIN)}
        if answer is None:
            raise CoordinatorLost("the coordinator closed the connection before the job was complete")
        if "refused" in answer:
            raise (TransportError if answer["foreign"] else ArgumentError)(f"rank {self.rank}: {answer['refused']}")
        if "missing" in answer:
            missing = list(answer["missing"])
            raise TimeoutError(
                f"rank {self.rank}: of {self.size} ranks, {missing} did not come within {self.timeout:g} s: were they "
                "started, with the same address? (timeout= or HOCKET_TIMEOUT is the limit)",
                missing,
            )
        return dict(answer["welcome"])


def _close(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        listener.close()


def _candidates(address: Meeting | None) -> list[Address]:
    if address is None:
        return []
    if address[0] == "unix":
        return [("unix", str(address[1]))]
    ports = address[2]  # type: ignore[misc]
    return [("tcp", str(address[1]), port) for port in ([ports] if isinstance(ports, int) else ports)]
