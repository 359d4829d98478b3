"""A rank's ways to meet the others: at an address, in a store, or through MPI."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from hocket.collectives.base.config import Config
from hocket.collectives.job import last_words
from hocket.collectives.job.launchers import managed_place, mpi_place
from hocket.collectives.job.place import OPEN_KEY, Place, meeting_path, own_address
from hocket.control.reactor import Reactor
from hocket.control.rendezvous import Identity, Where, join
from hocket.control.secret import MAKE_ONE
from hocket.control.session import LinkSession
from hocket.control.store import Listening, MeetAtStore, Store
from hocket.errors import ArgumentError, TransportError

log = logging.getLogger("hocket")
OPEN_STORE = (
    "the ranks meet through a store, and there is no HOCKET_SECRET: whoever reaches the store can join this job, read "
    f"its data and alter it, as with auth='none'. Set HOCKET_SECRET to the same on every rank, made by {MAKE_ONE}"
)
NO_SECRET = (
    "encryption needs a secret that all ranks hold and nobody else: set HOCKET_SECRET or HOCKET_SECRET_FILE on every "
    f"rank, made by {MAKE_ONE}"
)


class Start(NamedTuple):
    """This rank, how it was found, and how it meets the others: a session, and the job's name."""

    rank: int
    size: int
    why: str
    meet: Callable[[Reactor], tuple[LinkSession, str]]
    mpi: Any = None
    """The MPI job (transports.mpi.job.MpiJob) that the ranks are."""
    open_store: bool = False
    """Do they meet through a store that strangers may reach, without a secret?"""


def at_address(place: Place, wait: float, encrypt: bool) -> Start:
    """ArgumentError: encryption without a secret."""
    if encrypt and place.key == OPEN_KEY:
        raise ArgumentError(NO_SECRET)

    def meet(reactor: Reactor) -> tuple[LinkSession, str]:
        with last_words.seen_to_meet(os.environ):
            who = Identity(place.rank, place.size, place.job, place.key, encrypt)
            session = join(who, Where(place.address, place.also, place.told), wait, reactor)
        return session, place.job

    return Start(place.rank, place.size, place.why, meet)


def at_store(
    store: Store, rank: int | None, size: int | None, address: str | None, settings: Config, wait: float
) -> Start:
    """The start of a rank that the caller has numbered.  ArgumentError: a wrong number, encryption without a secret."""
    if rank is None or size is None or address is not None:
        raise ArgumentError("init(store=...) needs rank= and size=, and no address=")
    if not 0 <= rank < size:
        raise ArgumentError(f"rank is {rank} and size is {size}: ranks are 0 to size - 1")

    why = f"rank {rank} of {size} from the caller; rank 0 found in a store"
    meet = _meet_at(store, rank, size, settings, wait)
    unguarded = settings.secret is None and not getattr(store, "trusted", False)
    return Start(rank, size, why, meet, open_store=unguarded)


@functools.cache
def warn_of_open_store() -> None:
    """Once in a process, however often it starts."""
    log.warning(OPEN_STORE)


def _meet_at(
    store: Store, rank: int, size: int, settings: Config, wait: float
) -> Callable[[Reactor], tuple[LinkSession, str]]:
    if settings.encrypt and settings.secret is None and size > 1:
        raise ArgumentError(NO_SECRET)

    def meet(reactor: Reactor) -> tuple[LinkSession, str]:
        path = meeting_path(os.environ, secrets.token_hex(16))
        here = Listening(path, settings.iface or own_address(), settings.ports)
        met = MeetAtStore(Identity(rank, size, "", settings.secret, settings.encrypt), store, here, wait, reactor)
        session = met.meet()
        return session, met.who.job

    return meet


def by_launcher(settings: Config, wait: float, elastic: bool) -> Start | None:
    """The start of a rank whose launcher can tell where rank 0 is; None: its variables must do.

    Not of elastic jobs through a process manager, which ends the job with the first rank that is killed.
    """
    return by_mpi_launcher(settings, wait) or (None if elastic else by_manager(settings, wait))


def by_mpi_launcher(settings: Config, wait: float) -> Start | None:
    """The start of a rank that mpirun has started; None, and a line in the log, where mpi4py does not see it so."""
    place = mpi_place(os.environ)
    if place is None or place[1] == 1:
        return None
    from hocket.transports.mpi.job import started

    job = started(*place, wait)
    if isinstance(job, str):
        log.info("the ranks do not meet through MPI: %s", job)
        return None
    return by_mpi(job, settings, wait)


def by_manager(settings: Config, wait: float) -> Start | None:
    """The start of a rank on one of several hosts, whose process manager keeps a store; None: it keeps none."""
    place = managed_place(os.environ)
    if place is None:
        return None
    from hocket.control.managers import pmi, pmix

    store: pmi.PmiStore | pmix.PmixStore
    try:
        if (wire := pmi.wire(os.environ)) is not None:
            store = pmi.PmiStore(wire, wait)
        elif (begun := pmix.pmix(os.environ)) is not None:
            store = pmix.PmixStore(begun, wait)
        else:
            return None
    except (ArgumentError, TransportError) as error:
        log.info("the ranks do not meet through their process manager: %s", error)
        return None
    rank, size, launcher = place
    why = f"rank {rank} of {size} from {launcher}; rank 0 found through {store.where}"
    return Start(rank, size, why, _meet_at(store, rank, size, settings, wait))


def by_mpi(job: Any, settings: Config, wait: float) -> Start:
    """The start of a rank of an MPI job (transports.mpi.job.MpiJob)."""
    from hocket.transports.mpi.job import MpiStore

    why = f"rank {job.rank} of {job.size} from MPI ({job.about}); rank 0 found through MPI"
    meet = _meet_at(MpiStore(job, wait), job.rank, job.size, settings, wait)
    return Start(job.rank, job.size, why, meet, job)
