"""Survivors of a loss meet again, at the first of them: who they are, and where."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import NamedTuple

import hocket
from hocket import Communicator, hosting
from hocket.errors import PeerLostError

log = logging.getLogger("hocket")
WITHIN = "hvd.init()"
SETTLE = 0.5
"""Seconds in which ranks that die together are all told of."""
SECONDS = 30.0
"""For the survivors to meet; who does not come counts as lost."""
PORTS = 16


class Survivors(NamedTuple):
    """The ranks of a job by the numbers that they had when hvd.init() was called, which they keep.

    The same on all of them, wherever a loss met them: also where one has made the job anew and another one has not.
    """

    token: str
    """A name of the job that hvd.init() made."""
    places: tuple[tuple[int, str], ...]
    """The host and the address of each of its ranks."""
    ranks: tuple[int, ...]
    """Ranks that are there now, in the order of their present ranks."""
    meetings: int = 0
    """The number of meetings; those that failed count."""

    def without(self, gone: Iterable[int]) -> Survivors:
        """Without these, by their present ranks."""
        ranks = set(gone)
        return self._replace(ranks=tuple(each for rank, each in enumerate(self.ranks) if rank not in ranks))

    def address(self) -> str:
        """Where the next meeting is."""
        here = [self.places[each] for each in self.ranks]
        first = here[0][1]
        name = f"{self.token}.{self.meetings}.{','.join(map(str, self.ranks))}"
        if len({host for host, _ in here}) == 1:
            return hosting.local_meeting(name)
        port = 20000 + sum(name.encode()) * 37 % 10000
        return f"tcp:{first}:{port}-{port + PORTS - 1}"


def of_job(comm: Communicator) -> Survivors:
    """All ranks of a new job.  Collective."""
    rows = comm.share([comm.host, hosting.own_address(), secrets.token_hex(8)], WITHIN)
    return Survivors(rows[0][2], tuple((host, address) for host, address, _ in rows), tuple(range(comm.size)))


def meet(survivors: Survivors, me: int) -> tuple[Communicator, Survivors]:
    """The communicator of these ranks, or of those that come.  `me`: this rank's number among them.

    Raises hocket's errors if they do not meet.
    """
    while True:
        survivors = survivors._replace(meetings=survivors.meetings + 1)
        rank = survivors.ranks.index(me)
        try:
            comm = hocket.init(rank, len(survivors.ranks), survivors.address(), timeout=SECONDS, make_default=False)
            return comm, survivors
        except hocket.TimeoutError as late:
            if not late.missing or rank in late.missing:
                raise
            missing = [survivors.ranks[r] for r in late.missing]
            log.warning("ranks %s did not come to the meeting after a loss: going on without them", missing)
            survivors = survivors.without(late.missing)
        except PeerLostError as error:
            if not error.ranks:
                raise
            survivors = survivors.without(error.ranks)
