"""`init()`: from a process that some launcher started to a Communicator of all ranks."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hocket.arguments import choices, optional, seconds, whole
from hocket.collectives.arrays import shared
from hocket.collectives.base.config import Config, given
from hocket.collectives.base.groups import outside_group
from hocket.collectives.choice import cache, setting
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.communicator.renewing import as_json
from hocket.collectives.job import asked, last_words, uncaught
from hocket.collectives.job.place import detect
from hocket.collectives.job.start import Start, at_address, at_store, by_launcher, by_mpi, warn_of_open_store
from hocket.collectives.job.world import Supply, World
from hocket.collectives.recording import recorder
from hocket.collectives.start import default
from hocket.collectives.start.local_world import lone_session
from hocket.collectives.waiting import queued, starving
from hocket.collectives.waiting.pool import pool
from hocket.control import encryption
from hocket.control.reactor import Reactor
from hocket.control.session import LinkSession
from hocket.control.store import Store
from hocket.errors import ArgumentError, Error, PeerLostError, TimeoutError, TransportError
from hocket.system import exit_code
from hocket.system.machine import loopback
from hocket.transports import registry
from hocket.transports.base import Context, Transport

if TYPE_CHECKING:
    from hocket.collectives.elastic.elastic import Elastic

log = logging.getLogger("hocket")
_lock = threading.Lock()
_config: Config | None = None
_worlds: list[Communicator] = []
START_TIMEOUT = 60.0
"""Seconds for all ranks to come; HOCKET_TIMEOUT or timeout= if that is shorter."""
CALIBRATION = (8, 4 << 10, 64 << 10, 1 << 20)
"""Sizes measured for HOCKET_TUNING=measure: about a second with a core for each rank."""


def config() -> Config:
    """This process's settings, read from the environment once."""
    global _config
    with _lock:
        if _config is None:
            if not log.handlers:
                handler = logging.StreamHandler()
                handler.setFormatter(logging.Formatter("hocket[%(process)d] %(message)s"))
                log.addHandler(handler)
            _config = Config.from_env()
            log.setLevel(_config.log.upper())
        return _config


def init(
    rank: int | None = None, size: int | None = None, address: str | None = None, *, store: Store | None = None,
    auth: str = "secret", transport: str | None = None, timeout: float | None = None, make_default: bool = True,
    encrypt: bool | None = None, secret: str | bytes | None = None, iface: str | None = None,
    elastic: bool | None = None, join: str | Store | None = None, info: Any = None, most: int = 0,
) -> Communicator:  # fmt: skip
    """Join the other ranks of this job and return the communicator of all of them.

    Rank and size come from what the launcher left behind (`hocket run`, torchrun, mpirun, srun, or RANK and WORLD_SIZE
    set by hand); without a launcher the size is 1.  Under mpirun, with mpi4py, the ranks meet through MPI.
    HOCKET_LOG=info prints the decisions.

    - `rank`, `size` and `address` ("unix:/path", "tcp:host:port") come before the launcher.
    - `store`, with rank and size, replaces an address: any object with set(key, text) and get(key) that all ranks
      share.  A process that reads it may join, unless there is a secret.
    - `auth="none"`: over several hosts without a secret.  Then everybody on the network may join.
    - `transport`: names to use, best first ("shm,tcp"); default all that this machine has.
    - `timeout`: seconds for all ranks to come (60).
    - `make_default`: whether the functions of the module use this communicator.
    - `encrypt`: whether what leaves the host is encrypted (HOCKET_ENCRYPT), the same on every rank.  It needs the job's
      secret and OpenSSL 3.
    - `secret`: of this job, at least 16 bytes, the same on every rank (HOCKET_SECRET).
    - `elastic`: the job outlives its ranks, by `comm.renew` (HOCKET_ELASTIC); the same on every rank.  `most`: how many
      members it has room for; 0: no limit.
    - `join`: come to an elastic job that runs: the address of any of its ranks (`comm.door`; HOCKET_JOIN), several with
      commas between, or the store through which its ranks have met.  Returns when the members have let this process in,
      by `renew`; its rank is behind theirs.  `info` (JSON) is what they hear of it.  "auto": the job in whose folder
      (HOCKET_LOBBY) members have noted where they are; before any has, this process is one of those that begin it.
    - `iface`: the interface, or its address, that TCP listens on (HOCKET_IFACE).

    A process may be a rank of several jobs at once, also in several threads: pass make_default=False.

    Raises ArgumentError (launchers that disagree, no secret), TimeoutError (names the ranks that did not come).

    >>> import hocket
    >>> with hocket.init() as comm:
    ...     comm.rank, comm.size
    (0, 1)
    """
    settings = given(config(), secret, optional(iface, "iface"), encrypt)
    setting.check(settings.algorithm)
    join = join or settings.join or None
    if join == "auto":
        join = _noted_in_the_lobby()
    if join is not None:
        return _newcomer(join, info, settings, auth, optional(transport, "transport"), timeout, make_default)
    rank, size = (None if n is None else whole(n, what) for n, what in ((rank, "rank"), (size, "size")))
    most = whole(most, "most")
    address, transport = optional(address, "address"), optional(transport, "transport")
    settings = dataclasses.replace(settings, transport=transport or settings.transport)
    wait = limit(timeout, settings)
    explicit = any(each is not None for each in (store, rank, size, address))
    elastic = settings.elastic if elastic is None else elastic
    launched = None if explicit else by_launcher(settings, wait, elastic)
    if store is not None:
        start = at_store(store, rank, size, address, settings, wait)
    elif launched is not None:
        start = launched
    else:
        place = detect(os.environ, settings, rank=rank, size=size, address=address, auth=auth)
        start = at_address(place, wait, settings.encrypt)
    if not elastic:
        return _communicator(start, settings, transport, wait, make_default)
    # What a job needs that outlives its ranks is loaded by such jobs alone.
    from hocket.collectives.elastic.elastic import Elastic
    from hocket.control.folder import FolderStore

    lobby = os.environ.get("HOCKET_LOBBY")
    noted = store or (FolderStore(lobby) if lobby else None)
    its = Elastic(_maker(settings, transport, make_default), settings.encrypt, most or settings.most, noted)
    try:
        return _communicator(start, settings, transport, wait, make_default, its)
    except BaseException:
        its.close()
        raise


def _noted_in_the_lobby() -> str | None:
    """Where the members are, if the first generation has met already: they note it then."""
    from hocket.collectives.elastic.joining import written
    from hocket.control.folder import FolderStore

    lobby = os.environ.get("HOCKET_LOBBY")
    if not lobby:
        raise ArgumentError('join="auto" needs HOCKET_LOBBY: set it to a folder of this job alone, which all ranks see')
    return f"folder:{lobby}" if written(FolderStore(lobby)) else None


def _newcomer(
    join: str | Store, info: Any, settings: Config, auth: str, transport: str | None, timeout: float | None,
    make_default: bool,
) -> Communicator:  # fmt: skip
    from hocket.collectives.elastic.joining import newcomer

    settings = dataclasses.replace(settings, transport=transport or settings.transport)
    make, wait = _maker(settings, transport, make_default), limit(timeout, settings)
    return newcomer(make, join, as_json(info, "init"), settings, auth, wait)


def _maker(
    settings: Config, transport: str | None, make_default: bool
) -> Callable[[Start, float, Elastic], Communicator]:
    """A function that makes the communicator of a generation of an elastic job."""

    def make(start: Start, wait: float, elastic: Elastic) -> Communicator:
        return _communicator(start, settings, transport, wait, make_default, elastic)

    return make


def from_mpi(
    comm: Any, *, transport: str | None = None, timeout: float | None = None, make_default: bool = False
) -> Communicator:
    """Make a communicator of the ranks of an mpi4py communicator, in its order.  All of these ranks call it.

    `comm` is COMM_WORLD or any intracommunicator made of it (Split, Cart).  It is duplicated, and stays the caller's.
    The ranks meet through MPI.  Their calls then use shared memory and TCP where these reach; transport="mpi" sends
    messages over MPI, and algorithm="mpi" calls the library's own collectives.  Several may exist.

    Raises ArgumentError (no usable communicator), TimeoutError (a rank did not come).
    """
    from hocket.transports.mpi.job import MpiJob

    settings = config()
    transport, wait = optional(transport, "transport"), limit(timeout, settings)
    return _communicator(by_mpi(MpiJob(comm, wait), settings, wait), settings, transport, wait, make_default)


def limit(timeout: float | None, settings: Config) -> float:
    """Seconds for all ranks to come."""
    if timeout is None:
        return min(START_TIMEOUT, settings.timeout)
    return seconds(timeout, "timeout", f"{START_TIMEOUT:g}, or HOCKET_TIMEOUT if that is less")


def _communicator(
    start: Start, settings: Config, transport: str | None, wait: float, make_default: bool,
    elastic: Elastic | None = None, reactor: Reactor | None = None,
) -> Communicator:  # fmt: skip
    """`reactor`: one that others use, too; without it the communicator has its own."""
    names = (transport or settings.transport or ",".join(registry.known())).split(",")
    log.info("%s", start.why)
    uncaught.install()
    alone = start.size == 1
    world = _alone(settings, names, elastic) if alone else _join(start, settings, names, wait, elastic, reactor)
    world.why = start.why
    asked.listen(world.recorder)
    try:
        comm = Communicator(world, "world", range(start.size))
        comm.membership.accept(world.session.exchange(comm.membership.offer(), wait))
        if elastic is not None:
            elastic.again(comm, wait)
        if settings.tuning == "measure" and start.size > 1:
            with outside_group():  # a group of the caller's
                comm.tune(sizes=CALIBRATION, seconds=0.3)
    except BaseException:
        world.close() if elastic is None or not elastic.generation else world.retire()
        raise
    for peer in range(start.size):
        if peer != start.rank:
            log.info("rank %d to rank %d: %s", start.rank, peer, world.transport(peer))
    if start.open_store and start.rank == 0 and len(world.hosts) > 1:
        warn_of_open_store()
    with _lock:  # jobs may start in several threads
        open_ones = [each for each in _worlds if not each.reporter.closed]  # closed ones may go, with their memory
        _worlds[:] = [*open_ones, comm]
    if make_default:
        default.set_default(comm)
        window = shared.window_of(world.transports.values())
        if settings.shared_arrays and window is not None and window.fd >= 0:
            shared.begin(window, settings.shared_arrays)
    return comm


def of_two(
    start: Start, settings: Config, transport: str | None, wait: float, reactor: Reactor | None = None
) -> Communicator:
    """One end of a communicator of two (pairs.py).  Each step of the meeting may take `wait` seconds, and no longer."""
    short = dataclasses.replace(settings, timeout=min(wait, settings.timeout))
    comm = _communicator(start, short, transport, wait, False, reactor=reactor)
    comm.world.config = settings
    comm.set_timeout(settings.timeout)
    return comm


def _alone(settings: Config, names: list[str], elastic: Elastic | None) -> World:
    check_transports(*names)
    if elastic is not None and elastic.mesh is None:
        elastic.open(settings.iface or loopback(), settings.ports, secrets.token_hex(16), settings.secret)
    supply = Supply([], lambda name: "alone", check_transports)
    return World(0, 1, lone_session(), settings, supply, elastic=elastic)


def _join(
    start: Start, settings: Config, names: list[str], wait: float, elastic: Elastic | None, shared: Reactor | None
) -> World:
    if settings.encrypt and (reason := encryption.missing()):
        raise TransportError(f"rank {start.rank}: HOCKET_ENCRYPT is set: {reason}")
    if settings.encrypt:
        encryption.use((settings.tls_cert, settings.tls_key, settings.tls_ca))
    owned = None if shared or elastic else Reactor()
    reactor = owned or shared or elastic.reactor  # type: ignore[union-attr]
    reactor.lost_after = settings.lost_after
    try:
        session, job = start.meet(reactor)
        try:
            world = _world(start, session, job, settings, names, wait, reactor, elastic)
            world.reactor = owned
            here = next(host for host in world.hosts if start.rank in host)
            if owned is not None and here[0] == start.rank:
                starving.watch(owned.later, start.rank, len(here))
            return world
        except BaseException:
            session.close() if elastic is None else session.abandon()
            raise
    except BaseException:  # a failed start leaves nothing behind
        if owned is not None:
            owned.close()
        raise


def _world(
    start: Start, session: LinkSession, job: str, settings: Config, names: list[str], wait: float, reactor: Reactor,
    elastic: Elastic | None,
) -> World:  # fmt: skip
    if elastic is not None and elastic.mesh is None:
        elastic.open(_interface(session, settings), settings.ports, job, session.job_key)
    context = Context(
        start.rank, start.size, session.key, job, reactor, _interface(session, settings), settings.ports, wait,
        start.mpi, settings.rdma, session.epoch, session.look, settings.lost_after, bool(settings.check),
        settings.check.endswith("shm"),
        settings.congestion, settings.streams, settings.paths, settings.encrypt, session,
    )  # fmt: skip
    if settings.streams and "tcp" not in names:
        raise ArgumentError(f"HOCKET_STREAMS is for tcp, and transports are {', '.join(names)}: unset it, or add tcp")
    plain = [*encryption.ENCRYPTS, *settings.plain.split(",")] if settings.encrypt else None
    known = registry.known()

    def make(name: str) -> Transport | str:
        check_transports(name)
        if plain is not None and name not in plain:
            return encryption.refused(name)
        kind = registry.find(known[name])  # not before it is needed: one host needs no more than shm
        if isinstance(kind, str):
            return kind
        try:
            transport: Transport = kind(context)
        except (ArgumentError, PeerLostError, TimeoutError):  # of the user, or of another rank
            raise
        except Exception as why:  # what this machine refuses is a reason to use the next transport
            refused = isinstance(why, (OSError, Error))  # else it is a bug, of whoever wrote the transport
            log.log(logging.DEBUG if refused else logging.WARNING, "transport %s cannot be used", name, exc_info=True)
            return str(why) if isinstance(why, Error) else f"{type(why).__name__}: {why}"
        return transport

    check_transports(*names)
    before = elastic.tuning if elastic is not None else ""
    tuning = before or cache.given(settings) if start.rank == 0 else ""
    mpi = start.mpi if plain is None or "mpi" in plain else None  # its collectives are not encrypted either
    supply = Supply(names, make, check_transports)
    world = World(start.rank, start.size, session, settings, supply, tuning, mpi, elastic)
    context.note = world.note_link
    return world


def check_transports(*names: str) -> None:
    """ArgumentError if no transport has one of these names."""
    known = registry.known()
    for name in names:
        if name not in known:
            raise ArgumentError(f"transport {name!r} is not known; {choices(name, known)}")


def _interface(session: LinkSession, settings: Config) -> str:
    """The address at which the other ranks reach us: our end of the connection to the rendezvous."""
    if settings.iface:
        return settings.iface
    return session.local_address or loopback()


def fail_all(error: BaseException) -> None:
    """This rank fails with `error`: calls of the other ranks end, on whatever communicator they wait for it."""
    for comm in list(_worlds):
        for each in comm.world.present():
            each.reporter.give_up(error)


@atexit.register
def _leave() -> None:
    """At exit: say goodbye, or what this rank died of."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    why = [each.reporter.broken for comm in _worlds for each in comm.world.present()]
    broken = [each for each in why if each is not None]
    last_words.tell(os.environ, error if isinstance(error, BaseException) else None, broken)
    for comm in _worlds:
        try:
            for each in comm.world.present():
                if isinstance(error, BaseException):
                    each.reporter.give_up(error)
                each.reporter.end_broken_off()
            comm.close()
            if comm.world.unraised:
                exit_code.at_least(1)
        except Error as wrong:
            log.error("%s", uncaught.once(str(wrong), comm.rank))
            exit_code.at_least(1)
        except Exception:
            log.debug("at exit", exc_info=True)
    pool.rest()
    job = sys.modules.get("hocket.transports.mpi.job")
    if job is not None:
        job.leave()
    gpus = sys.modules.get("hocket.collectives.gpu.context")
    if gpus is not None:
        gpus.leave()


def _forked() -> None:
    """In a forked child the job is the parent's: calls are refused, and nothing of it is touched.

    It may be a rank of another, with an environment of its own.
    """
    global _config
    _config = None
    queued.forked()
    recorder.forked()
    for first in _worlds:
        for comm in first.world.present():  # those of split and dup too
            comm.ending.disown()
    _worlds.clear()


os.register_at_fork(after_in_child=_forked)
