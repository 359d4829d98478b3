"""Jobs that outlive their ranks: from one generation's communicator to the next one's."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hocket.collectives.failures.states import Over, Stopped
from hocket.collectives.job.place import meeting_path
from hocket.collectives.job.start import Start
from hocket.control.dial import show
from hocket.control.elastic.meeting import MeetNext
from hocket.control.elastic.mesh import Mesh, Own
from hocket.control.protocol.decree import Call
from hocket.control.protocol.generations import Generation, Seat
from hocket.control.reactor import Reactor
from hocket.control.session import LinkSession
from hocket.errors import ArgumentError, PeerLostError, TimeoutError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator
    from hocket.collectives.job.world import World

log = logging.getLogger("hocket")
Make = Callable[[Start, float, "Elastic"], "Communicator"]
"""Makes the communicator of a generation, within a time."""


class Elastic:
    """This process's part in a job whose members change; it outlives the worlds of the job's generations."""

    def __init__(self, make: Make, job: str, key: bytes | None, encrypt: bool, most: int, store: Any) -> None:
        self.reactor = Reactor()
        self.mesh: Mesh | None = None
        self.generation = 0
        """That of the world at hand, or that is being made."""
        self.tuning = ""
        """What was measured in the generation before, on its members."""
        self._lanes: dict[str, int] = {}
        self._previous: tuple[int | None, ...] = ()
        self._make = make
        self._own = Own(job, key, encrypt, (), most, store)

    def open(self, host: str, ports: Iterable[int] | None, job: str, info: Any = None) -> None:
        """Begin to listen: on TCP where there is a secret, else on a Unix socket."""
        unix = ("unix", meeting_path(os.environ, secrets.token_hex(16)))
        places = [unix] if self._own.key is None else [("tcp", host, list(ports) if ports else 0)]
        self._own = self._own._replace(job=job, places=places)
        self.mesh = Mesh(self.reactor, self._own, info)

    def seat(self) -> Any:
        """What the others need to know of this process."""
        return None if self.mesh is None else self.mesh.seat

    def met(self, seats: list[Any]) -> None:
        """All ranks of the first generation have come."""
        mesh = self.mesh
        if mesh is not None and mesh.generations is None:
            mesh.begin(Generation(0, [Seat(*each) for each in seats], mesh.uid))

    # --- renew

    def renew(
        self, comm: Communicator, info: Any, admit: bool, without: Iterable[int], least: int, timeout: float
    ) -> Communicator:
        mesh, deadline = self.mesh, time.monotonic() + timeout
        assert mesh is not None
        before = self.known(comm.world.generation)
        excluded = {before.seats[rank].uid for rank in without}

        def call(now: Generation) -> Call:
            return Call(info, tuple(sorted(now.ranks[uid] for uid in excluded if uid in now.ranks)), least, admit)

        while True:
            now = mesh.agree(call, deadline)
            if now is None:
                missing = mesh.missing()
                if mesh.now.number > mesh.met:  # in the last moment
                    continue
                raise self._late(before, missing, comm, timeout)
            if now.rank is None:
                raise PeerLostError(
                    f"rank {comm.rank}: the others have gone on without this rank, as generation {now.number}: "
                    f"{_how(now, before, comm.rank)}", [comm.rank])  # fmt: skip
            if not comm.world.closed:
                self._lanes, self.tuning = lanes_of(comm), comm.tuning.text() if comm.tuning.points else ""
                retire(comm.world, f"generation {before.number} of the job is over: use what renew() returned")
            mesh.met = now.number
            self._previous = tuple(before.ranks.get(seat.uid) for seat in now.seats)
            try:
                made = self._meet(now, max(1.0, deadline - time.monotonic()))
                break
            except PeerLostError as error:
                log.info("rank %d: while generation %d met: %s", comm.rank, now.number, error)
            except TimeoutError as error:
                uids = [now.seats[rank].uid for rank in error.missing if rank < len(now.seats)]
                raise self._late(before, uids, comm, timeout) from None
        return made

    def again(self, comm: Communicator, wait: float) -> None:
        """This communicator's generation has met: what was said, and its lanes."""
        world, now = comm.world, self.known(self.generation)
        world.infos, world.previous_ranks = now.infos, self._previous or (None,) * len(now.seats)
        if self.generation:
            said = world.session.exchange(None if self._previous == () else self._lanes, wait)
            for name, priority in common([lanes for lanes in said if lanes is not None]):
                comm.lane(name, priority=priority)

    def lost(self, generation: int) -> set[int]:
        """Ranks of this generation that are proven to be dead."""
        mesh = self.mesh
        if mesh is None or mesh.generations is None:
            return set()
        of = self.known(generation)
        return {of.ranks[uid] for uid, left in list(mesh.generations.gone.items()) if uid in of.ranks and not left}

    def waiting(self) -> int:
        return 0 if self.mesh is None else len(self.mesh.lobby())

    def door(self) -> str:
        assert self.mesh is not None
        kind, *place = self.mesh.seat.addresses[0]
        return show((kind, *place))  # type: ignore[arg-type]

    def when_changed(self, call: Callable[[], object]) -> None:
        assert self.mesh is not None
        self.mesh.callbacks.append(call)

    def known(self, number: int) -> Generation:
        mesh = self.mesh
        assert mesh is not None and mesh.generations is not None
        return mesh.generations.past.get(number) or mesh.now

    def _meet(self, now: Generation, wait: float) -> Communicator:
        mesh = self.mesh
        assert mesh is not None and now.rank is not None

        def meet(reactor: Reactor) -> tuple[LinkSession, str]:
            met = MeetNext(mesh, now, wait)
            return met.meet(), met.who.job

        why = f"rank {now.rank} of {len(now.seats)}: generation {now.number}"
        self.generation = now.number
        mesh.callbacks.clear()
        return self._make(Start(now.rank, len(now.seats), why, meet), wait, self)

    def _late(self, before: Generation, uids: list[str], comm: Communicator, timeout: float) -> TimeoutError:
        missing = sorted(before.ranks[uid] for uid in uids if uid in before.ranks)
        new = sum(uid not in before.ranks for uid in uids)
        who = f"ranks {missing} are there and have not called it" if missing else "too few ranks are left, or the others"
        if new and not missing:
            who = f"{new} newcomers have not come"
        return TimeoutError(
            f"rank {comm.rank}: renew() of generation {before.number} did not end within {timeout:g} s: {who}; "
            "renew(without=...) goes on without ranks that do not answer", missing)  # fmt: skip

    def close(self) -> None:
        """Leave the job."""
        if self.mesh is not None:
            self.mesh.close()
        self.reactor.close()


def lanes_of(comm: Communicator) -> dict[str, int]:
    return {name: lane.membership.priority for name, lane in comm._open_lanes().items()}


def common(said: list[dict[str, int]]) -> list[tuple[str, int]]:
    """The lanes that all members have, in one order."""
    return sorted(lane for lane in (said[0].items() if said else ()) if all(lane in other.items() for other in said))


def retire(world: World, why: str) -> None:
    """This world's generation is over: end its calls, and free what it holds.  Waits for nobody."""
    if world.closed:
        return
    for comm in world.present():
        comm.reporter.take(Stopped())
        comm.reporter.take(Over(ArgumentError(why)))
        comm.ending._give_back()
    world.retire()


def _how(now: Generation, before: Generation, rank: int) -> str:
    how = now.lost.get(rank) if now.number == before.number + 1 else None
    return {
        "excluded": "a member has excluded it (renew(without=...))", "unreachable": "they could not reach it",
    }.get(how or "", "it came too late")  # fmt: skip
