"""`comm.stats()`: what this rank's calls were, and what they took.  engine/count.pxd counts."""

from __future__ import annotations

from typing import NamedTuple

from hocket.collectives.members.members import Members


class Stat(NamedTuple):
    """This rank's calls of one kind on one communicator, since it was made."""

    collective: str
    """A collective's name, or that of messages: send, recv or sendrecv."""
    algorithm: str
    transport: str
    """Transports that this rank used, such as "shm+tcp"; "" if there was no peer."""
    queue: str
    """collectives, messages, or gpu"""
    lane: str
    """The name of a lane of the communicator; "" if it was called itself."""
    calls: int
    bytes: int
    """Bytes of the whole vectors, all calls together."""
    seconds: float
    """From the turn of each call to its end.  An estimate: the first 32 are timed, then one in 64 of those of up to
    16 KiB, one in 16 of those below 16 MiB, and all others."""
    waited: float
    """Seconds of these in which nothing moved: the other ranks were late, or the transport was busy."""

    @property
    def moved(self) -> float:
        """Seconds in which bytes moved or were reduced."""
        return self.seconds - self.waited


def stats(members: Members, lane: str = "") -> list[Stat]:
    """A row for each kind of call that was made, in no order."""
    rows = [
        Stat(*what, kind, lane, each.calls, each.bytes, each.seconds, each.waited)
        for (kind, _), queue in members.queues.copy().items() for what, each in queue.counts.copy().items()
    ]  # fmt: skip
    return [each for each in rows if each.calls]
