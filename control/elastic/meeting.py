"""The meeting of a generation that was agreed on: its rank 0 takes the others in at the listener that it has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hocket.control.elastic.reaching import address_of
from hocket.control.handshake import Address
from hocket.control.links import Links
from hocket.control.listener import Listener
from hocket.control.protocol.generations import Generation
from hocket.control.rendezvous import Identity, Meet
from hocket.control.session import LinkSession
from hocket.errors import PeerLostError

if TYPE_CHECKING:
    from hocket.control.elastic.mesh import Mesh


class MeetNext(Meet):
    """One member's attempt to meet the others of `generation`.  PeerLostError: one of them is gone."""

    patience = math.inf

    def __init__(self, mesh: Mesh, generation: Generation, timeout: float) -> None:
        rank, own = generation.rank, mesh.own
        assert rank is not None
        who = Identity(rank, len(generation.seats), mesh.job_of(generation), own.key, own.encrypt)
        super().__init__(who, None, timeout, mesh.reactor)
        self.mesh, self.first = mesh, generation.seats[0]

    def listen(self, links: Links) -> list[Listener]:
        self.mesh.host(self.who.job, links, self.taker(links))
        return []

    def addresses(self) -> list[Address]:
        if not self.mesh.reachable(self.first.uid):
            raise PeerLostError(f"rank {self.who.rank}: rank 0 was lost while the ranks met", [0])
        return [address_of(each) for each in self.first.addresses]

    def meet(self) -> LinkSession:
        session = super().meet()
        if self.who.rank == 0:
            session.home = next((str(each[1]) for each in self.mesh.seat.addresses if each[0] == "tcp"), None)
        return session
