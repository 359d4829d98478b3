"""The world: what a process has once, whatever communicators it makes.

Its session with the other ranks (control plane), its transports, and for each other rank the transports that reach
it and the reason why each other one does not.  The session's callbacks arrive here, on the reactor's thread, and are
passed on to the communicators they concern.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hocket.collectives.arrays import shared
from hocket.collectives.arrays.staging import may_have_gpu
from hocket.collectives.base.callsite import thread_site
from hocket.collectives.base.config import Config
from hocket.collectives.choice import declared
from hocket.collectives.choice.tuning import Tuning
from hocket.collectives.job.cores import cores_of
from hocket.collectives.job.hosts import alike, hosts, machine, reached, sharing
from hocket.collectives.job.opener import Opener
from hocket.collectives.job.outliving import Outliving
from hocket.collectives.recording.own import OwnRecorder
from hocket.collectives.recording.recorder import of_process
from hocket.collectives.recording.records import NOBODY, Kind
from hocket.collectives.recording.spans import HealedSpan
from hocket.collectives.waiting.pool import pool
from hocket.control.protocol.membership import Gone
from hocket.control.protocol.messages import Account, Fault, Goodbye, Left, Lost, OpenTransport, Told, Verdict
from hocket.control.session import Session
from hocket.errors import ArgumentError, MismatchError, TransportError
from hocket.system.cores import usable_cores
from hocket.system.machine import boot_id, own_folder
from hocket.transports.base import Traits, Transport

if TYPE_CHECKING:
    from concurrent.futures import Future

log = logging.getLogger("hocket")


_opening = threading.Lock()
_open: weakref.WeakSet[World] = weakref.WeakSet()
"""The worlds of this process that are not closed."""
Exchange = Callable[[Any], list[Any]]
"""Takes a JSON value and returns every world rank's, by rank (None from ranks that take no part)."""


class Closing(Protocol):
    """A reactor, or this world's share of one."""

    def close(self) -> None: ...


class Supply(NamedTuple):
    """The transports of a job."""

    names: Sequence[str]
    """Transports to try, best first; the later ones are not even opened if the earlier ones reach everybody."""
    make: Callable[[str], Transport | str]
    """Builds one, or gives the reason why it cannot be."""
    check: Callable[[str], None] = lambda name: None
    """Raises ArgumentError for a name that nobody knows, before other ranks are asked about it."""


class World:
    """This process's place among all ranks.

    `tuning`: what `hocket tune` has left on this machine; rank 0's is used.  `mpi`: the MPI job that the ranks are.
    """

    def __init__(
        self, rank: int, size: int, session: Session, config: Config, supply: Supply, tuning: str = "", mpi: Any = None,
        elastic: Outliving | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.session, self.config = rank, size, session, config
        self.pids: list[int] = []
        """The processes of this host's ranks, as these know them.  Set before other worlds can see this one."""
        with _opening:
            _open.add(self)
        self.names, self._make, self.check = supply
        self.transports: dict[str, Transport] = {}
        self.absent: dict[str, str] = {}
        self.traits: dict[str, Traits] = {}
        """Traits of every transport that some rank has: all ranks know the same."""
        self.tables: dict[str, list[list[str | None]]] = {}
        """transport -> [rank][peer] -> None where it reaches that peer, else the reason."""
        self.opener = Opener(self)
        self.communicators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.background: set[Future[Any]] = set()
        """The calls of threads (`before_close`) that have not ended."""
        self.lock = threading.Lock()
        self.closed = False
        self.unraised = False
        """Has one of its communicators ended with an error that could not be raised?"""
        self.recorder: OwnRecorder | None = None
        self.thread: int | None = None
        """The thread that is this rank, if it is not the whole process; NO_THREAD: it is not known, or has ended."""
        self.why = ""
        self.reactor: Closing | None = None
        """The world closes this with itself."""
        self.elastic = elastic
        """The elastic job, which outlives this world, if there is one."""
        self.generation = elastic.generation if elastic else 0
        self.infos: tuple[Any, ...] = ()
        self.previous_ranks: tuple[int | None, ...] = ()
        """The members' words when they made this generation, and the ranks that they had before."""
        self.previous_lost: dict[int, str] = {}
        """By rank of the generation before, who is no member: "dead", "left", "unreachable" or "excluded"."""
        session.own(self)
        declared.load()  # before any choice
        with _opening:
            worlds = list(_open)
        mine = {
            "kernel": boot_id(), "node": os.uname().nodename, "folder": own_folder(os.environ),
            "cores": sorted(os.sched_getaffinity(0)), "usable": usable_cores(), "pid": os.getpid(),
            "processes": sorted({pid for world in worlds for pid in world.pids}),
            "tuning": tuning, "mpi": mpi.level if mpi else "", "gpu": may_have_gpu(config.gpu),
            "names": list(self.names), "encrypt": config.encrypt, "certified": config.encrypt and bool(config.tls_cert),
            "job": elastic.name() if elastic else secrets.token_hex(6), "seat": elastic.seat() if elastic else None,
            "round_trip": session.round_trip,
        }  # fmt: skip
        met = session.exchange(mine, config.timeout)
        self.recorder = _recorder(config, rank, size, met[0]["job"])
        _agree([each["names"] for each in met])
        _agree_on_encryption([bool(each["encrypt"]) for each in met], "encrypt", "HOCKET_ENCRYPT (or init(encrypt=))")
        _agree_on_encryption([bool(each["certified"]) for each in met], "have certificates", "HOCKET_TLS_CERT")
        _agree_on_elastic([each["seat"] is not None for each in met])
        if elastic is not None:
            elastic.met([each["seat"] for each in met], met[0]["job"])
        self.pids = [int(each["pid"]) for each in met if each["kernel"] == mine["kernel"]]
        self.gpus = [bool(each["gpu"]) for each in met]
        """Which ranks may have arrays on a GPU: if some may not, those of others are copied to host memory."""
        self.mpi = mpi if all(each["mpi"] for each in met) else None
        """The MPI job whose library can be called, on all ranks or on none."""
        self.mpi_everywhere = all(each["mpi"] == "multiple" for each in met)
        """May any thread of any rank call it?"""
        self.cores = cores_of(met, rank)
        self.round_trips = [float(each.get("round_trip", 0.0)) for each in met]
        """Seconds from each rank to rank 0 and back: all know the same."""
        self.tuning = Tuning.read(met[0]["tuning"]) if met[0]["tuning"] else Tuning()
        """Rank 0's, on all ranks: a rank that chose by another tuning might run another algorithm."""
        try:
            for name in self.names:
                if self._all_reached():
                    self.absent[name] = "not opened: every rank is reached without it"
                else:
                    self.add(name, lambda value: session.exchange(value, config.timeout))
        except BaseException:
            for transport in self.transports.values():
                transport.close()
            raise
        local = reached(size, [self.tables[name] for name, traits in self.traits.items() if traits.local])
        self.groups = sharing(local)
        self.near = any(traits.local for traits in self.traits.values())
        """Was a transport tried that reaches ranks of a host alone?"""
        places = [machine(each, self.near) for each in met]
        self.hosts = hosts([a | b for a, b in zip(local, alike(places), strict=True)])
        """Ranks by host: those that share memory, and those that name the same machine, though memory failed them."""

    def note_link(self, what: str, times: int, seconds: float, healed: tuple[int, bool] | None = None) -> None:
        """A mark, for `hocket top`, metrics and traces; in these also for how long, and what healed, as data."""
        if self.recorder is not None:
            self.recorder.put(Kind.MARK, what, times)
            now = time.monotonic_ns()
            self.recorder.span(what, "links", now - int(seconds * 1e9), now, healed and HealedSpan(*healed))

    def admit(self, comm: Any) -> None:
        """Add a communicator; from now on it hears what the control plane says."""
        with self.lock:
            self.communicators.add(comm)

    def present(self) -> list[Any]:
        """The communicators still in use, as a copy: threads may make others meanwhile."""
        with self.lock:
            return list(self.communicators)

    def add(self, name: str, exchange: Exchange) -> None:
        """Open one more transport, or one more time to ranks that were not there then.

        Collective over the ranks that take part in `exchange`.
        """
        transport = self.transports.get(name) or self._make(name)
        if isinstance(transport, str):
            self.absent[name] = transport
            offers = exchange(None)
            mine: list[str | None] = [transport] * self.size
        else:
            self.absent.pop(name, None)
            self.transports[name] = transport
            offers = exchange([transport.offer(), *getattr(transport, "traits", Traits())])
            mine = transport.reach([each and each[0] for each in offers])
        traits = next((Traits(*each[1:]) for each in offers if each is not None), None)
        if traits is not None:
            self.traits[name] = traits
        mine[self.rank] = None
        rows = exchange(mine)
        before = self.tables.get(name, [["it took no part"] * self.size for _ in range(self.size)])
        self.tables[name] = [row or before[r] for r, row in enumerate(rows)]

    def refusal(self, name: str, rank: int, seen_from: int | None = None) -> str | None:
        """Why this transport is not used; None if it is open at both ends."""
        me = self.rank if seen_from is None else seen_from
        if name not in self.tables:
            return self.absent.get(name, f"no such transport; there are {', '.join(self.names)}")
        own, other = self.tables[name][me][rank], self.tables[name][rank][me]
        return own or (f"refused by rank {rank}: {other}" if other else None)

    def transport(self, rank: int, forced: str | None = None, seen_from: int | None = None) -> str:
        """The transport used to `rank`: the first that reaches it, or the forced one."""
        names = [forced] if forced else list(self.names)
        for name in names:
            if self.refusal(name, rank, seen_from) is None:
                return name
        why, seer = "; ".join(f"{n}: {self.refusal(n, rank, seen_from)}" for n in names), seen_from
        raise TransportError(f"rank {self.rank if seer is None else seer} has no transport to rank {rank} ({why})")

    def _all_reached(self) -> bool:
        return reached(self.size, self.tables.values()) == [(1 << self.size) - 1] * self.size

    @property
    def gone(self) -> Gone:
        """The ranks that were lost, and those that have left the job."""
        return self.session.gone

    def renewing(self) -> dict[int, dict[str, int]]:
        """Ranks in `renew`, for which others wait in vain, and how many calls each had finished."""
        return {} if self.elastic is None else self.elastic.renewing(self.generation)

    def look_who_is_lost(self) -> None:
        """Rank 0 is lost to this rank, and would tell of others: in an elastic job the members' own connections do."""
        if self.elastic is not None:
            known = self.gone.lost.keys() | self.gone.left.keys()
            if new := self.elastic.unreached(self.generation) - known:
                lost = Lost(min(new), "it does not answer, or has ended, and rank 0 is lost, too", sorted(known | new))
                self.elastic.reactor.soon(lambda: self.session.take(lost))

    # --- from the control plane (reactor's thread)

    def stop(self, fault: Fault) -> Account:
        comm = self._named(fault.comm)
        return self._without_it() if comm is None else comm.reporter.stop(fault)

    def account(self, name: str) -> Account:
        comm = self._named(name)
        return self._without_it() if comm is None else comm.reporter.account()

    def hear(self, message: Verdict | Lost | Left | Told | OpenTransport) -> None:
        if self.recorder is not None and isinstance(message, (Verdict, Lost, Left)):
            kind, text, by = noted(message)
            self.recorder.put(kind, text, peer=by)
        if isinstance(message, (Verdict, Lost)):
            for comm in self.present():
                comm.reporter.hear(message)
        elif isinstance(message, Told):
            asked = self._named(message.comm)
            if asked is not None:
                asked.reporter.long_waits.told[message.rank] = message.account
        elif isinstance(message, OpenTransport):
            self.opener.begin(message.transport)

    def _named(self, name: str) -> Any:
        return next((comm for comm in self.present() if comm.name == name), None)

    def _without_it(self) -> Account:
        """This rank's account for a communicator that it does not have."""
        return {"state": "without", "call": "", "site": thread_site(self.thread), "seq": 0}

    def say_goodbye(self, patient: bool = False) -> None:
        """Tell the others that this rank leaves.  `patient`: if it is rank 0, wait until they have left too."""
        finished = {comm.name: comm.reporter.finished() for comm in self.present()}
        latest = {comm.name: comm.reporter.latest(finished[comm.name]) for comm in self.present()}
        self.session.close(Goodbye(finished, latest), patient)

    def close(self) -> None:
        """Leave the job: goodbye, then the transports.  Never raises, bounded."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self.say_goodbye()
        self._close_own()
        if self.mpi is not None:
            self.mpi.close(clean=not self.gone.lost)
        if self.elastic is not None:
            self.elastic.close()
        if self.reactor is not None:
            self.reactor.close()
        with _opening:
            _open.discard(self)
            if not _open:
                pool.rest()

    def retire(self) -> None:
        """Another generation of the job takes this world's place: leave it, and wait for nobody."""
        with self.lock:
            self.closed = True
        self.session.abandon()
        self._close_own()
        with _opening:
            _open.discard(self)

    def _close_own(self) -> None:
        transports = list(self.transports.values())  # one may be added now (opener.py)
        shared.closed(shared.window_of(transports))
        for transport in transports:
            transport.close()
        if self.recorder is not None:
            self.recorder.close()


def noted(message: Verdict | Lost | Left) -> tuple[Kind, str, int]:
    """A note for the recorder: its kind, a word, and the rank that it is about."""
    if isinstance(message, Left):
        return Kind.LEFT, "", message.rank
    if isinstance(message, Lost):
        return Kind.VERDICT, "lost", message.lost[0] if message.lost else NOBODY
    return Kind.VERDICT, message.fault.kind, NOBODY if message.fault.by is None else message.fault.by


def _recorder(config: Config, rank: int, size: int, job: str) -> OwnRecorder | None:
    """The rank's recorder, which traces if the environment says so.  None: HOCKET_RECORDER=0."""
    if not config.recorder:
        return None
    recorder = OwnRecorder(of_process(), rank, size, job)
    if config.trace:
        try:
            recorder.trace(config.trace)
        except OSError as why:
            log.warning("no trace in %s: %s", config.trace, why)
    return recorder


def _agree(names: Sequence[Sequence[str]]) -> None:
    """All ranks open the same transports in the same order, or they would take each other's addresses for their own."""
    other = next((r for r, each in enumerate(names) if each != names[0]), None)
    if other is None:
        return
    by_rank = {r: f"transports {', '.join(each) or 'none'}" for r, each in enumerate(names)}
    raise MismatchError(
        f"the ranks would use different transports: rank 0 {', '.join(names[0])}, rank {other} "
        f"{', '.join(names[other])}: HOCKET_TRANSPORT, init(transport=) and the installed packages with "
        "transports must be the same on every rank",
        by_rank,
    )


def _agree_on_elastic(asked: Sequence[bool]) -> None:
    if len(set(asked)) > 1:
        ranks = [r for r, each in enumerate(asked) if each]
        same = "init(elastic=) or HOCKET_ELASTIC must be the same on all"
        raise ArgumentError(f"only ranks {ranks} are elastic: {same}")


def _agree_on_encryption(asked: Sequence[bool], what: str, by: str) -> None:
    if len(set(asked)) > 1:
        with_it, without = ([r for r, each in enumerate(asked) if each is wanted] for wanted in (True, False))
        same = "be the same on every rank" if what == "encrypt" else "be set on all ranks or on none"
        raise ArgumentError(f"ranks {with_it} {what} and ranks {without} do not: {by} must {same}")
