"""The meeting of a generation that was agreed on: its rank 0 takes the others in at the listener that it has."""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from hocket.control.elastic.reaching import address_of
from hocket.control.handshake import Address
from hocket.control.links import Links
from hocket.control.listener import Listener
from hocket.control.protocol.generations import Generation
from hocket.control.protocol.membership import again
from hocket.control.rendezvous import Identity, Meet
from hocket.control.session import LinkSession
from hocket.errors import PeerLostError, TransportError

if TYPE_CHECKING:
    from hocket.control.elastic.mesh import Mesh


class MeetNext(Meet):
    """One member's attempt to meet the others of `generation`.  PeerLostError: one of them is gone.

    Also the way back to rank 0 (control/mending.py), by which a connection that breaks before the transports are open
    is made again.
    """

    patience = math.inf

    def __init__(self, mesh: Mesh, generation: Generation, timeout: float) -> None:
        rank, own = generation.rank, mesh.own
        assert rank is not None
        who = Identity(rank, len(generation.seats), mesh.job_of(generation), own.key, own.encrypt)
        super().__init__(who, None, timeout, mesh.reactor)
        self.mesh, self.seats = mesh, generation.seats
        self.way = self if rank else None
        self._session: LinkSession | None = None

    def listen(self, links: Links) -> list[Listener]:
        links.way = self
        self.mesh.host(self.who.job, links, self.taker(links))
        return []

    def addresses(self) -> list[Address]:
        if not self.mesh.reachable(self.seats[0].uid):
            raise PeerLostError(f"rank {self.who.rank}: rank 0 was lost while the ranks met", [0])
        return [address_of(each) for each in self.seats[0].addresses]

    def session(self, sock: socket.socket) -> LinkSession:
        self._session = super().session(sock)
        return self._session

    def control_again(self, rank: int, seconds: float, look: Callable[[], object]) -> socket.socket:
        self.control_ask(rank, seconds, look)
        if self._session is None or not self._session.epoch:  # the reactor's thread is ahead of the one that meets
            raise TransportError("this rank is not welcome yet")
        failed = TransportError("rank 0 has no TCP address")
        for address in map(address_of, self.seats[rank].addresses):
            if address[0] == "tcp":
                try:
                    return self.reach(address, again(self._session.epoch), seconds, look)
                except TransportError as why:
                    failed = why
        raise failed

    def control_ask(self, rank: int, seconds: float, look: Callable[[], object]) -> None:
        """The members know who is gone; a rank that lives comes by itself."""
        if not self.mesh.reachable(self.seats[rank].uid):
            gone = TransportError(f"rank {rank} is gone")
            gone.errno = errno.ECONNREFUSED
            raise gone

    def meet(self) -> LinkSession:
        session = super().meet()
        if self.who.rank == 0:
            session.home = next((str(each[1]) for each in self.mesh.seat.addresses if each[0] == "tcp"), None)
        return session
