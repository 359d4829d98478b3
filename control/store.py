"""Meeting through a store: rank 0 opens the coordinator where it likes and notes where; the others read that and come.

A store is somebody's key-value service (torch's TCPStore, say).  All ranks reach it, and everybody who reaches it may
read and write.  Its note may be old: of a job that is over, whose ranks a launcher started again.  So a rank takes
nothing but the note from it, the coordinator proves that it wrote that note, and a rank that is refused reads again.
A rank that was given a key takes none from a note; only without a key does it believe whoever writes the store.  Cost:
one write, and a read and one connection a rank.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hocket.control.addresses import BindAddress
from hocket.control.handshake import Address, AuthError
from hocket.control.links import Links
from hocket.control.listener import Listener
from hocket.control.reactor import Reactor
from hocket.control.rendezvous import WRONG_KEY, Identity, Meet
from hocket.control.session import LinkSession
from hocket.errors import TransportError
from hocket.system.machine import local_end

log = logging.getLogger("hocket.control")
NOTE = "hocket"
"""The key that rank 0 writes."""
STRANGE_KEY = (
    "the store's note carries a key, and this rank has a secret (HOCKET_SECRET), so the note is refused: either rank 0 "
    "has no secret, so set the same on every rank, or somebody else has written it"
)
NO_KEY = "rank 0 has a secret (HOCKET_SECRET) and this rank has none: set the same on every rank"


class Store(Protocol):
    """The interface of a store.

    A store with `trusted = True` says that whoever reaches it can run code in the job's processes anyway, so rank 0
    does not warn of it.  One with `where` names its address, for errors.
    """

    def set(self, key: str, value: str) -> object:
        """Keep a value, instead of an older one."""

    def get(self, key: str) -> bytes | str | None:
        """The value, None if there is none (yet).  Does not wait."""


class Listening(NamedTuple):
    """Where rank 0 listens, if this rank is rank 0."""

    path: str
    """The path of a Unix socket, for the ranks of its host."""
    host: str
    ports: Sequence[int] | None


class MeetAtStore(Meet):
    """One rank's attempt to join by the store.

    `here` is where rank 0 listens; `who` names no job, which rank 0 draws.  Without a key it makes one and writes it
    down too, so whoever reads the store can join.
    """

    patience = float("inf")  # a note may be old, so another key means: read again

    def __init__(self, who: Identity, store: Store, here: Listening, timeout: float, reactor: Reactor) -> None:
        own = secrets.token_bytes(32) if who.rank == 0 else None
        super().__init__(who._replace(job=secrets.token_hex(16), key=who.key or own), None, timeout, reactor)
        self.store, self.given = store, who.key
        self.doubted = 0.0  # since when the note does not fit to what this rank was given; 0: it fits
        self.here, self.host = here, here.host

    def listen(self, links: Links) -> list[Listener]:
        key, here, listeners = self.who.key, self.here, list[Listener]()
        assert key is not None
        places: list[BindAddress] = [("unix", here.path), ("tcp", here.host, here.ports or [0])]
        try:
            for address in places:
                try:
                    listeners.append(Listener(self.reactor, address, key, self.taker(links)))
                except TransportError as why:
                    if address[0] != "unix":
                        raise
                    log.info("the ranks of this host meet over TCP: %s", why)
        except BaseException:
            for each in listeners:
                each.close()
            raise
        shown = None if self.given else key.hex()
        note = {"job": self.who.job, "key": shown, "addresses": [each.address for each in listeners]}
        self.store.set(NOTE, json.dumps(note))
        return listeners

    def addresses(self) -> list[Address]:
        """The addresses that the store has now."""
        try:
            note = json.loads(self.store.get(NOTE) or "{}")
            job, drawn = str(note["job"]), bytes.fromhex(note["key"] or "")
            addresses = [_address(*each) for each in note["addresses"]]
        except (ValueError, KeyError, TypeError):
            return []
        if bool(drawn) == (self.given is not None):
            self._doubt()
            return []
        self.doubted = 0.0
        self.who = self.who._replace(job=job, key=self.given or drawn)
        self.host = next((each[1] for each in addresses if each[0] == "tcp"), self.host)
        return addresses

    def _doubt(self) -> None:
        """AuthError if the note has a key and this rank a secret, or neither; after a while, as the note may be old."""
        self.doubted = self.doubted or time.monotonic()
        if time.monotonic() - self.doubted > min(WRONG_KEY, self.timeout / 2):
            raise AuthError(f"rank {self.who.rank}: " + (STRANGE_KEY if self.given else NO_KEY))

    def nobody(self, addresses: list[Address]) -> str:
        if not addresses:
            return f"rank 0 has not written into the store{self.named} where it is"
        return f"rank 0 was not found where the store{self.named} says that it is"

    def through(self) -> str:
        return f", which the store{self.named} tells"

    @property
    def named(self) -> str:
        where = getattr(self.store, "where", "")
        return f" at {where}" if where else ""

    def hint(self, addresses: Sequence[Address]) -> str:
        """Rank 0 alone chose the folder."""
        return super().hint([each for each in addresses if each[0] == "tcp"])

    def knock(self, address: Address) -> LinkSession:
        session = super().knock(address)
        if address[0] == "unix":  # on rank 0's host, but it may be in another network namespace
            session.home = local_end(self.host) or self.here.host
        return session


def _address(kind: str, place: str, port: int = 0) -> Address:
    return ("unix", str(place)) if kind == "unix" else ("tcp", str(place), int(port))
