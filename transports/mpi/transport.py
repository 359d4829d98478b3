"""The mpi transport: hocket's own schedules over the point-to-point messages of an MPI library.

For clusters whose network only MPI knows how to use.  Where tcp or shm reach every rank, it is not opened unless it is
asked for (`transport="mpi"`).  Channels lie on a private communicator; opening one asks nothing of the peer, as each
rank deals out the tags that it receives on.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from hocket.errors import TransportError
from hocket.transports.base import Context, Traits
from hocket.transports.mpi.job import MpiJob, told_to_finalize

CLOSE_SECONDS = 0.2
"""Seconds that channels that close wait until their last packets have been taken."""
_unfinished: list[MpiChannels] = []
"""Closed, with something still under way: MPI may write into their memory, so they stay."""


SEGMENT = 1 << 24
"""Bytes; each is a message of MPI's long kind, with a handshake.  `mpirun -n 2 python -m hocket.bench allreduce
--transport mpi -b 4M -e 4M`, our time by Open MPI's own: 1.04 to 1.20, with 128 KiB in pieces of 256 KiB 1.84."""
SEGMENTS = {"Intel MPI": 131072}
"""By vendor, where another is better.  What goes through Intel MPI's shared memory in one piece: the same with 16M:
0.53, in one piece 1.12."""


class MpiTransport:
    """Messages between the ranks of an MPI job."""

    name = "mpi"
    launched = True
    """Only the ranks of a launcher of its own can use it."""

    def __init__(self, context: Context) -> None:
        if context.mpi is None:
            raise TransportError("these processes are not an MPI job: start them with mpirun, or use hocket.from_mpi")
        self.rank = context.rank
        self.job: MpiJob = context.mpi
        self.traits = Traits(segment=SEGMENTS.get(self.job.vendor, SEGMENT))
        self.unclosed: list[MpiChannels] = []
        told_to_finalize(self.close)

    @staticmethod
    def available() -> str | None:
        """Looks, but imports nothing: to import mpi4py starts MPI."""
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed (pip install mpi4py)"
        version = metadata.version("mpi4py")
        return None if int(version.split(".")[0]) >= 4 else f"mpi4py {version} is too old: 4 or later is needed"

    @staticmethod
    def about() -> str:
        """For `hocket doctor`.  MPI is started only where a launcher of it has started us."""
        from hocket.transports.mpi.job import described

        return f"(mpi4py {metadata.version('mpi4py')}; {described()})"

    def offer(self) -> dict[str, Any]:
        return {"rank": self.job.rank, "library": self.job.library}

    def reach(self, offers: Sequence[Any]) -> list[str | None]:
        """Members of the communicator are reached: its making was the test."""
        return [self._refusal(rank, offer) for rank, offer in enumerate(offers)]

    def _refusal(self, rank: int, offer: Any) -> str | None:
        if not offer:
            return "that rank has no MPI"
        return None if offer["rank"] == rank else f"it is rank {offer['rank']} of the MPI job"

    def detail(self, rank: int) -> str:
        return self.job.about

    def channels(self, name: str, index: int, members: Sequence[int]) -> MpiChannels:
        _sweep(0.0)
        channels = MpiChannels(self, members)
        self.unclosed.append(channels)
        return channels

    def close(self) -> None:
        for channels in list(self.unclosed):
            channels.close()
        _sweep(0.0)


class MpiChannels:
    """The channels of one communicator."""

    def __init__(self, transport: MpiTransport, members: Sequence[int]) -> None:
        self.transport, self.members = transport, members
        self.thread = transport.job.thread
        """The thread that may drive these channels; see Engine.thread."""
        self.tag = transport.job.next_tags()
        self.pairs: list[Any] = []  # not emptied by `close`: an engine may still point to them

    def offer(self) -> dict[str, int]:
        return {"tag": self.tag}

    def open(self, peer: int, offer: Any) -> tuple[Any, Any]:
        from hocket.transports.mpi.channel import MpiPair

        job = self.transport.job
        pair = MpiPair(job.mpi, job.handle, self.members[peer], offer["tag"], self.tag)
        self.pairs.append(pair)
        return pair.send, pair.recv

    def close(self) -> None:
        if self not in self.transport.unclosed:
            return
        self.transport.unclosed.remove(self)
        if not self.ended(CLOSE_SECONDS):
            _unfinished.append(self)

    def ended(self, seconds: float) -> bool:
        """Is nothing under way any more, after so many seconds at most?  Ends what can be ended."""
        deadline = time.monotonic() + seconds
        done = [each.close(max(0.0, deadline - time.monotonic())) for each in self.pairs]
        return all(done)

    @property
    def pinned(self) -> bool:
        """Does MPI still hold memory of callers?  Then their arrays must stay."""
        return any(each.pinned for each in self.pairs)


def _sweep(seconds: float) -> None:
    _unfinished[:] = [channels for channels in _unfinished if not channels.ended(seconds)]
