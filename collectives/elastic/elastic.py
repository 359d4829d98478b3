"""Jobs that outlive their ranks: from one generation's communicator to the next one's, and how newcomers come in."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.collectives.failures.states import Over, Stopped
from hocket.collectives.job.place import meeting_path
from hocket.collectives.job.start import Start
from hocket.control.addresses import BindAddress
from hocket.control.dial import show
from hocket.control.elastic.entering import enter
from hocket.control.elastic.meeting import MeetNext
from hocket.control.elastic.mesh import Mesh
from hocket.control.elastic.reaching import Own
from hocket.control.handshake import Address
from hocket.control.protocol.generations import Generation
from hocket.control.protocol.seats import Seat
from hocket.control.protocol.words import Call, Made
from hocket.control.reactor import Reactor
from hocket.control.session import LinkSession
from hocket.errors import ArgumentError, PeerLostError, TimeoutError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator
    from hocket.collectives.job.world import World

log = logging.getLogger("hocket")
DOORS = "hocket/doors"
"""The key in a store under which members write where newcomers find them."""
LAST_MOMENT = 0.3
"""Seconds more where all have called and time is over."""
LEAST_MEETING = 1.0
"""Seconds that a generation has to meet, however late it was agreed on."""
NEWCOMERS = 5.0
"""Seconds in which newcomers come to their first meeting; who does not is left out: nobody has worked with it yet."""


class RenewalWish(NamedTuple):
    """A member's wish for the next generation."""

    info: Any
    admit: bool = True
    without: frozenset[str] = frozenset()
    least: int = 1


class Elastic:
    """This process's part in a job whose members change; it outlives the worlds of the job's generations.

    `make` makes the communicator of a generation, within a time.  `most`: members at most; 0: no limit.  `store`: one
    through which newcomers come, and whose `first` may grant half of a job that it goes on.
    """

    def __init__(
        self, make: Callable[[Start, float, Elastic], Communicator], encrypt: bool = False, most: int = 0,
        store: Any = None,
    ) -> None:  # fmt: skip
        self.reactor = Reactor()
        self.mesh: Mesh | None = None
        self.generation = 0
        """That of the world at hand, or that is being made."""
        self.tuning = ""
        """The measurements of the generation before, on its members."""
        self._name = ""
        """The job's in recordings, without a generation; "": it is not known yet."""
        self._met = 0
        """Stage of the generation at hand: 1: all have come to its meeting; 2: and all know that."""
        self._latest: weakref.ref[Communicator] | None = None
        self._make, self._store = make, store
        self._own = Own("", None, encrypt, (), most, store if hasattr(store, "first") else None)
        self._lanes: dict[str, int] | None = None
        """The lanes of the generation before; None: this process is new."""
        self._previous: tuple[int | None, ...] = ()
        self._lost: dict[int, str] = {}
        """Members of the generation before, by their rank there, that are none now."""

    def open(self, host: str, ports: Iterable[int] | None, job: str, key: bytes | None, info: Any = None) -> None:
        """Begin to listen: on TCP where there is a secret, else on a Unix socket."""
        unix: BindAddress = ("unix", meeting_path(os.environ, secrets.token_hex(16)))
        tcp: BindAddress = ("tcp", host, list(ports)) if ports else ("tcp", host, 0)
        places = [unix] if key is None else [tcp]
        self.mesh = Mesh(self.reactor, self._own._replace(job=job, key=key, places=places), info)

    def seat(self) -> Any:
        """The facts that the others need about this process."""
        return self._open.seat

    def name(self) -> str:
        """By which recordings of this generation are known; up to the dot it is the job's."""
        return f"{self._name or secrets.token_hex(6)}.{self.generation}"

    def met(self, seats: list[Any], name: str) -> None:
        """All ranks of a generation have come; of the first one, this is how they know each other."""
        mesh, self._name, self._met = self._open, name.partition(".")[0], 1
        if mesh.generations is None:
            mesh.begin(Generation(0, [Seat(*each) for each in seats], mesh.uid), met=0)

    # --- for the communicator at hand

    def lost(self, number: int) -> set[int]:
        """Ranks of this generation that are proven to be dead."""
        mesh = self._open
        if mesh.generations is None:
            return set()
        of = self._known(number)
        return {of.ranks[uid] for uid, left in mesh.generations.gone.copy().items() if uid in of.ranks and not left}

    def unreached(self, number: int) -> set[int]:
        """Ranks of this generation that are gone, or have not answered for the limit."""
        mesh, ranks = self._open, self._known(number).ranks
        return {rank for uid, rank in ranks.items() if uid != mesh.uid and not mesh.reachable(uid)}

    def latest(self) -> Communicator | None:
        """The communicator of the generation at hand; None: it was dropped."""
        return None if self._latest is None else self._latest()

    def renewing(self, number: int) -> dict[int, dict[str, int]]:
        """Ranks of this generation that have called `renew`, and how many calls each had finished, by communicator."""
        mesh = self.mesh
        return {} if mesh is None or mesh.generations is None else mesh.renewing(self._known(number))

    def ranks_in(self, number: int, earlier: int) -> tuple[int | None, ...]:
        """The ranks that the members of a generation had in an earlier one."""
        return tuple(self._known(earlier).ranks.get(seat.uid) for seat in self._known(number).seats)

    def waiting(self) -> int:
        """The number of newcomers that wait."""
        return len(self._open.lobby())

    def door(self) -> str:
        """The address of this process's listener."""
        kind, *place = self._open.seat.addresses[0]
        return show((kind, *place))

    def set_notice(self, notice: Any) -> None:
        """Set the notice for those who may come."""
        self._open.notice = notice

    def when_changed(self, call: Callable[[], object]) -> None:
        """To be called when a member is gone or a newcomer comes, until the generation ends."""
        self._open.callbacks.append(call)

    def again(self, comm: Communicator, wait: float) -> None:
        """This communicator's generation has met: what was said, where newcomers find it, and its lanes."""
        world, now = comm.world, self._known(self.generation)
        self._latest = weakref.ref(comm)
        world.infos, world.previous_ranks = now.infos, self._previous or (None,) * len(now.seats)
        world.previous_lost = self._lost
        if self._store is not None and comm.rank == 0:
            self._store.set(DOORS, json.dumps([each for seat in now.seats for each in seat.addresses]))
        if self.generation:
            rows = world.session.exchange(self._lanes, wait)
            self._met = 2
            comm.lanes(dict(common([lanes for lanes in rows if lanes is not None])))
        self._lanes, self._met = {}, 2

    # --- from one generation to the next

    def renew(
        self, comm: Communicator, info: Any, admit: bool, without: Iterable[int], least: int, timeout: float
    ) -> Communicator:
        """`Communicator.renew`."""
        before = self._known(comm.world.generation)
        wanted = RenewalWish(info, admit, frozenset(before.seats[rank].uid for rank in without), least)
        self._part(comm)
        deadline = time.monotonic() + timeout
        while True:
            now = self._agreed(wanted, deadline, f"rank {comm.rank}", before, timeout)
            if now.rank is None:
                raise PeerLostError(
                    f"rank {comm.rank}: the others have gone on without this rank, as generation {now.number}: "
                    f"{_why(now, before, comm.rank)}", [comm.rank])  # fmt: skip
            if not comm.world.closed:
                self._lanes, self.tuning = lanes_of(comm), comm.tuning.text() if comm.tuning.points else ""
                retire(comm.world, f"generation {before.number} of the job is over: use what renew() returned")
            self._previous = tuple(before.ranks.get(seat.uid) for seat in now.seats)
            self._lost = self._lost_since(before, now)
            outcome = self._meet(now, deadline, f"rank {comm.rank}", before, timeout)
            if not isinstance(outcome, frozenset):
                return outcome
            wanted = wanted._replace(without=wanted.without | outcome, admit=wanted.admit and not outcome)

    def _part(self, comm: Communicator) -> None:
        """This rank makes no other call in this generation: its calls end, and those of others that wait for it.

        So no waits form a circle.  Who is in `renew` waits for all; whoever else waits in a call waits for one that is
        in a call, or computes, or is gone, or is in `renew`, and in the last two cases it is told.
        """
        if comm.world.closed or comm.reporter.renews:
            return
        why, finished = PeerLostError(f"rank {comm.rank} has called renew(): it can only call that again", []), {}
        comm.reporter.renews = True
        for each in comm.world.present():
            finished[each.name] = each.reporter.finished()
            each.reporter.abort(why)
        self._open.renews(comm.world.generation, finished)

    def come(
        self, number: int, info: Any, grace: float, late: Iterable[int], least: int, timeout: float
    ) -> Made | list[int] | None:
        """`Communicator.come`, of this generation.  None: it is over, or to be.  A list: time is over, without these
        ranks."""
        mesh = self._open
        if mesh.now.number != number:
            return None
        outcome = mesh.come(Call(info, least=least, late=tuple(late)), grace, time.monotonic() + timeout)
        if outcome is not None:
            return outcome
        if self.renewing(number):
            return None
        missing = mesh.missing(of_round=True)
        if mesh.now.number != number or mesh.now.decree.here:
            return None
        return [mesh.now.ranks[uid] for uid in missing if uid in mesh.now.ranks]

    def join(self, addresses: Callable[[], list[Address]], info: Any, timeout: float) -> Communicator:
        """A newcomer's `init`."""
        mesh, deadline = self._open, time.monotonic() + timeout
        admitted = enter(mesh, addresses, timeout)
        ranks = {seat.uid: rank for seat, rank in zip(admitted.seats, admitted.previous, strict=True)}
        before, wanted = mesh.now, RenewalWish(info)
        while True:
            now = self._agreed(wanted, deadline, "a newcomer", before, timeout)
            if now.rank is None:
                raise PeerLostError("a newcomer: the others have gone on without this process", [])
            self._previous = tuple(ranks.get(seat.uid) for seat in now.seats)  # in the members' last generation
            outcome = self._meet(now, deadline, "a newcomer", before, timeout)
            if not isinstance(outcome, frozenset):
                return outcome
            wanted = wanted._replace(without=wanted.without | outcome, admit=wanted.admit and not outcome)

    def close(self) -> None:
        """Leave the job."""
        if self.mesh is not None:
            self.mesh.close()
        self.reactor.close()

    def _agreed(self, wanted: RenewalWish, deadline: float, who: str, before: Generation, timeout: float) -> Generation:
        mesh = self._open

        def call(now: Generation) -> Call:
            without = tuple(sorted(now.ranks[uid] for uid in wanted.without if uid in now.ranks))
            return Call(wanted.info, without, wanted.least, wanted.admit, mesh.own.most, met=self._met)

        now = mesh.agree(call, deadline)
        if now is None:
            missing = mesh.missing()
            now = mesh.agree(None, time.monotonic() + (0.0 if missing else LAST_MOMENT))
        if now is None:
            raise _late(who, before, missing, timeout, [mesh.now.seats[r].uid for r in tuple(mesh.now.decree.here)])
        return now

    def _meet(
        self, now: Generation, deadline: float, who: str, before: Generation, timeout: float
    ) -> Communicator | frozenset[str]:
        """The communicator of this generation; or another one is to be agreed on, without these newcomers, as somebody
        was lost or did not come."""
        mesh, wait = self._open, max(LEAST_MEETING, deadline - time.monotonic())
        assert now.rank is not None
        new = frozenset(seat.uid for seat, rank in zip(now.seats, self._previous, strict=True) if rank is None)
        wait = min(wait, NEWCOMERS) if new else wait

        def meet(reactor: Reactor) -> tuple[LinkSession, str]:
            met = MeetNext(mesh, now, wait)
            return met.meet(), met.who.job

        mesh.met = self.generation = now.number
        self._met = 0
        mesh.callbacks.clear()
        why = f"rank {now.rank} of {len(now.seats)}: generation {now.number}"
        try:
            return self._make(Start(now.rank, len(now.seats), why, meet), wait, self)
        except PeerLostError as error:
            log.info("%s: while generation %d met: %s", who, now.number, error)
        except TimeoutError as error:
            # All members have called.  One that is silent since is missed by the next agreement; a slow one is not.
            others = [seat.uid for rank, seat in enumerate(now.seats) if rank in error.missing and rank != now.rank]
            slow = new.intersection(others)
            if not new or time.monotonic() >= deadline:
                raise _late(who, before, [*slow], timeout, agreed=True) from None
            log.info("%s: ranks %s did not come to generation %d", who, error.missing, now.number)
            return slow
        return frozenset()

    def _lost_since(self, before: Generation, now: Generation) -> dict[int, str]:
        """Members lost since `before`, by their rank there."""
        lost: dict[int, str] = {}
        for number in range(before.number, now.number):
            seats, later = self._known(number).seats, self._known(number + 1)
            lost |= {before.ranks[seats[r].uid]: how for r, how in later.lost.items() if seats[r].uid in before.ranks}
        return lost

    def _known(self, number: int) -> Generation:
        generations = self._open.generations
        assert generations is not None
        return generations.past.get(number) or generations.now

    @property
    def _open(self) -> Mesh:
        assert self.mesh is not None
        return self.mesh


def lanes_of(comm: Communicator) -> dict[str, int]:
    """A communicator's open lanes, with their priorities."""
    return {name: lane.membership.priority for name, lane in comm._open_lanes().items()}


def common(rows: list[dict[str, int]]) -> list[tuple[str, int]]:
    """The lanes that all members have, in one order."""
    return sorted(lane for lane in (rows[0].items() if rows else ()) if all(lane in other.items() for other in rows))


def retire(world: World, why: str) -> None:
    """This world's generation is over: end its calls, and free what it holds.  Waits for nobody."""
    for comm in world.present():
        comm.reporter.take(Stopped())
        comm.reporter.take(Over(ArgumentError(why)))
        comm.ending._give_back()
    world.retire()


def _why(now: Generation, before: Generation, rank: int) -> str:
    how = now.lost.get(rank) if now.number == before.number + 1 else None
    if how == "excluded":
        return "a member has excluded it (renew(without=...))"
    return "they could not reach it" if how == "unreachable" else "it came too late"


def _late(
    who: str, before: Generation, uids: list[str], timeout: float, called: Sequence[str] = (), agreed: bool = False
) -> TimeoutError:
    """`uids`: for whom it waited.  `agreed`: all had called, and the next generation did not begin."""
    missing = sorted(before.ranks[uid] for uid in uids if uid in before.ranks)
    new = sum(uid not in before.ranks for uid in uids)
    why = "too few members are there: least= of them are needed, and more than half where ranks do not answer"
    if missing:
        why = f"ranks {missing} live, but have not called it: renew(without=...) goes on without them"
    elif new:
        why = f"{new} newcomers were let in and have not come"
    elif agreed:
        why = "all have called it, and the next generation did not begin in time: call it again"
    what = f"{who}: renew() of generation {before.number} did not end within {timeout:g} s"
    return TimeoutError(f"{what}: {why}", missing, sorted(before.ranks[uid] for uid in called if uid in before.ranks))
