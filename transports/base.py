"""What a transport is, for Python: the cold half of channel.h.

A transport finds out which peers it reaches and opens *lanes* to them: a lane is one ordered channel to and one
from each member of a communicator.  Everything here happens once per process or per communicator; the bytes
themselves go through the C table of channel.h (or, slowly, through a `PyChannel`).

A third party adds one by the entry-point group `hocket.transports`: name -> class with this interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from hocket.transports.reactor import Reactor

LOCAL = ("shm", "threads")
"""Transports whose channels are memory: to open one needs no answer from the peer, and proves a common host."""


@dataclass
class Context:
    """What a process knows of itself when its transports are made."""

    rank: int
    size: int
    key: bytes
    """The job's session key: every connection proves that it holds it."""
    job: str
    reactor: Reactor
    host: str = "127.0.0.1"
    """The address of this host's interface that routes to the other ranks; loopback only if all are on this host."""
    ports: range | None = None
    """Ports that may be listened on; None: the system chooses."""
    timeout: float = 30.0
    mpi: Any = None
    """The MPI job (mpi_job.MpiJob) whose ranks these are, if they are one's."""


class PyChannel(Protocol):
    """A channel in Python, one direction; the laws are those of channel.h.  None means: not now, try again."""

    def send(self, tag: int, length: int, done: int, data: bytes) -> int | None:
        """Take some of bytes [done, done + len(data)) of a message; return how many.  Copies what it takes."""

    def peek(self, want: int) -> tuple[int, int, bytes | memoryview] | None:
        """(tag, length, bytes at hand) of the message at the head; at least `want` bytes if they have come."""

    def consume(self, count: int, end: bool) -> None:
        """Drop `count` bytes; `end` closes the message.  A closed connection raises ConnectionError in `peek`."""


@runtime_checkable
class Lane(Protocol):
    """The channels of one communicator, or of one of its queues, over one transport."""

    def offer(self) -> Any:
        """What the peers need to open their side (JSON)."""

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        """Channels (to, from) member `peer`, as PyCapsules HK_CAPSULE.  May wait for the peer to do the same."""

    def close(self) -> None:
        """All members have finished, or are gone."""


@runtime_checkable
class Transport(Protocol):
    """One way between this process and others.  Made from a `Context`.

    It may have a `detail(rank) -> str`: what a user may want to know of the road to that rank, for `comm.explain()`;
    and a static `missing(context) -> str | None`: why it cannot work in this job, though this machine can do it.
    """

    name: str

    @staticmethod
    def available() -> str | None:
        """None, or why this machine cannot do it at all."""

    def offer(self) -> Any:
        """What a peer needs to reach this rank (JSON); all ranks' offers are exchanged before `reach`."""

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        """Test the road to every rank: None where it is open, else the reason.  Not told of this rank itself."""

    def lane(self, name: str, index: int, members: Sequence[int]) -> Lane:
        """A new lane for a communicator of these world ranks, in which this rank is member `index`."""

    def close(self) -> None:
        """Close everything; never raises."""
