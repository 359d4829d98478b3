"""A crew: the members of an elastic job who go on together, round after round.

    crew = Crew(comm)                       # comm of hocket.init(elastic=True), or join=
    while not done:
        crew.boundary(state)                # newcomers come in, and who was late comes back; all hold one state
        try:
            with crew.attempt(state):       # a loss inside: those who are left go on with one state
                work(state)
                crew.present().allreduce(...)
                state.position += 1
        except Again:                       # this round's work is lost: begin it again
            continue

A round has two moments, to which members come: its boundary, and `present`.  At each of them those who have come agree
on who that is (`Communicator.come`); who is late is left out of that moment, and does not block it.  A state is counted
by its position, and the most advanced one is taken by those behind.  As each such agreement needs more than half of the
members, no two parts of a crew advance.
Cost: one agreement (5 short messages a rank) for each moment, whatever the state's size.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket import Communicator
from hocket.arguments import seconds, whole
from hocket.errors import ArgumentError, MismatchError, PeerLostError
from hocket.training.crew import blocks
from hocket.training.crew.loading import Server, load
from hocket.training.crew.quorum import Grace
from hocket.training.flat import Array, digest
from hocket.training.outer.members import Again, Replica

BOUNDARY, PRESENT = 0, 1
NOWHERE = -1
"""The position of a state that is not whole: a newcomer's, or one that was being received when its donor died."""


class Change(NamedTuple):
    """What has changed since the last boundary."""

    generation: int
    size: int
    lost: tuple[int, ...]
    """Ranks of the generation before that are no members any more."""
    joined: int
    """How many newcomers came in."""
    healed: bool
    """Did this rank take another one's state?"""


class Crew:
    """The members of `comm`, which has to be elastic.

    - `least`: members that a round has at least.
    - `grace`: seconds that those who have come wait for the others; "adaptive": by how long that has usually taken.
    - `on_change(change)`: called when members were lost or came, after the state is one again.
    - `timeout`: seconds for an agreement, and for the members to meet anew.
    - `replicated`: do all members of one position hold the same bits?  Then two digests are an error.
    - `serve`: a state that this member sends to newcomers before they come (`Crew.join`).
    """

    def __init__(
        self, comm: Communicator, *, least: int = 1, grace: float | str = "adaptive",
        on_change: Callable[[Change], object] | None = None, timeout: float = 60.0, replicated: bool = True,
        serve: Replica | None = None,
    ) -> None:  # fmt: skip
        if isinstance(grace, str) and grace != "adaptive":
            raise ArgumentError(f'grace={grace!r} must be seconds, or "adaptive"')
        self.comm = comm
        self.left_out: tuple[int, ...] = ()
        """Ranks that did not come to the latest moment in time."""
        self._least, self._timeout = whole(least, "least"), seconds(timeout, "timeout")
        self._grace = Grace(grace if isinstance(grace, str) else seconds(grace, "grace"))
        self._on_change, self._replicated = on_change, replicated
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._whole = not comm.generation or comm.previous_ranks[comm.rank] is not None
        self._checked = False
        """Have the digests been compared in this generation?"""
        self._changes: list[Change] = []
        self._state: Replica | None = None
        self._digests: Array | None = None
        """Of the blocks of a state that has not changed since."""
        self._server = None if serve is None else Server(comm, serve)

    @classmethod
    def join(cls, join: Any, state: Replica, *, timeout: float = 60.0, **more: Any) -> Crew:
        """A newcomer's: take a member's state while they train, if one serves it, and only then come to the job.

        When the members let it in, what has changed meanwhile is all that moves.  `join`: as `hocket.init` has it;
        `timeout`: seconds until they have; `more`: arguments of `Crew`.
        """
        digests = blocks.digests(state.arrays()) if load(join, state) else None
        crew = cls(hocket.init(join=join, timeout=timeout), timeout=timeout, **more)
        crew._digests = digests
        return crew

    def close(self) -> None:
        """Leave the job."""
        if self._server is not None:
            self._server.close()
        self.comm.close()

    @property
    def generation(self) -> int:
        """Of the members' communicator."""
        return self.comm.generation

    def boundary(self, state: Replica) -> Change | None:
        """Come to the boundary between two rounds: then all who are here hold one state.  What has changed, or None.

        Newcomers are let in when nobody is late.  Raises MismatchError (two states of one position), TimeoutError.
        """
        self._state, healed_before = state, False
        while True:
            try:
                if not self._whole:
                    healed_before = self._heal_all(state)
                ranks, infos = self._come(state, BOUNDARY)
                waiting = any(infos[rank][3] for rank in ranks)
                if waiting and len(ranks) == self.comm.size:
                    self._renew(state)
                    continue
                healed = self._heal(state, {rank: infos[rank] for rank in ranks})
            except PeerLostError:
                self._renew(state)
                continue
            self._checked = True
            return self._told(healed or healed_before)

    @contextlib.contextmanager
    def attempt(self, state: Replica) -> Iterator[Communicator]:
        """A round's work.  A loss inside: the others go on with one state, and `Again` is raised; also where this rank
        came too late, and the others have done the round without it.  Its part of the round is lost then.
        """
        self._state = state
        try:
            yield self.comm
        except PeerLostError as error:
            self._renew(state)
            raise Again(f"rank {self.comm.rank}: {self.comm.size} ranks begin the round again: {error}") from error

    def present(self) -> Communicator:
        """The communicator of those who have come to this point of the round; for one sum, say.

        Raises Again where this rank came too late.  Call it in `attempt`.
        """
        if self._state is None:
            raise ArgumentError("present: call boundary(state) first")
        ranks, _ = self._come(self._state, PRESENT)
        return self._group(ranks)

    # --- who has come

    def _come(self, state: Replica, moment: int) -> tuple[list[int], dict[int, Any]]:
        """The ranks at this moment, and what each that has come to the agreement said."""
        while True:
            began = time.monotonic()
            info = [moment, *self._place(state), self.comm.waiting > 0]
            came = self.comm.come(info, grace=self._grace.seconds, late=self.left_out, least=self._least,
                                  timeout=self._timeout)  # fmt: skip
            if any(how != "late" for how in came.lost.values()):
                raise PeerLostError(f"rank {self.comm.rank}: ranks {sorted(came.lost)} are gone", sorted(came.lost))
            self.left_out = tuple(sorted(came.lost))
            if not came.lost:
                self._grace.note(time.monotonic() - began)
            infos = dict(zip(came.ranks, came.infos, strict=True))
            ranks = at_moment(infos, self.comm.size)
            if self.comm.rank in ranks:
                return ranks, infos
            if moment == PRESENT and (not ranks or max(infos[rank][1] for rank in ranks) > state.position):
                raise Again(f"rank {self.comm.rank} came too late: the others have gone on without its part")

    def _place(self, state: Replica) -> list[Any]:
        """How far this rank has come, and its digest, where that is to be compared."""
        if not self._whole:
            return [NOWHERE, None]
        self._digests = None  # the state has changed since
        if not self._replicated or self._checked:
            return [state.position, None]
        self._digests = blocks.digests(state.arrays())
        return [state.position, digest(self._digests)]

    def _group(self, ranks: Sequence[int]) -> Communicator:
        """Their communicator, made once for each set of ranks."""
        key = tuple(ranks)
        if len(key) == self.comm.size:
            return self.comm
        if key not in self._groups:
            self._groups[key] = self.comm.create_group(key, f"crew {key}", timeout=self._timeout)
        return self._groups[key]

    # --- one state

    def _renew(self, state: Replica) -> None:
        """Go on with those who are left, and with newcomers; all of them hold one state then."""
        while True:
            before, self._checked = self.comm, False
            info = [BOUNDARY, *self._place(state), False]
            self.comm = before.renew(info, least=self._least, timeout=self._timeout)
            self._groups, self.left_out = {}, ()
            stay = [rank for rank in self.comm.previous_ranks if rank is not None]
            lost = tuple(rank for rank in range(before.size) if rank not in stay)
            joined = self.comm.size - len(stay)
            change = Change(self.comm.generation, self.comm.size, lost, joined, False)
            try:
                change = change._replace(healed=self._heal_all(state))
            except PeerLostError:
                self._changes.append(change)
                continue
            self._changes.append(change)
            if self._on_change is not None:
                self._on_change(change)
            return

    def _heal_all(self, state: Replica) -> bool:
        """What the members of a new generation have said is where they stand."""
        new = [BOUNDARY, NOWHERE, None, False]
        return self._heal(state, {rank: new if each is None else each for rank, each in enumerate(self.comm.infos)})

    def _heal(self, state: Replica, infos: dict[int, Any]) -> bool:
        """Who is behind takes the state of the lowest of the most advanced.  Did this rank?"""
        top = max(each[1] for each in infos.values())
        most = [rank for rank, each in infos.items() if each[1] == top]
        digests = {rank: infos[rank][2] for rank in most if infos[rank][2] is not None}
        if self._replicated and len(set(digests.values())) > 1:
            raise MismatchError(
                f"rank {self.comm.rank}: the states of position {top} differ: digests by rank {digests}",
                {rank: f"digest {digest}" for rank, digest in digests.items()})  # fmt: skip
        behind = [rank for rank, each in infos.items() if each[1] < top]
        donor, me = min(most), self.comm.rank
        if not behind or me not in (donor, *behind):
            return False
        group = self._group(sorted((donor, *behind)))
        root = sorted((donor, *behind)).index(donor)
        self._whole &= me == donor  # until it has come as a whole
        rows = group.share([state.numbers() if me == donor else None, self._digests is not None], "a state")
        mine, self._digests = self._digests, None
        arrays = state.arrays()
        if rows[root][1] and any(known for _, known in rows[:root] + rows[root + 1 :]):
            pieces = blocks.runs(arrays, self._differ(group, root, mine))
        else:
            pieces = [array for _, array in sorted(arrays.items())]
        for piece in pieces:
            group.broadcast(piece, root)
        if me != donor:
            state.load(rows[root][0])
        self._whole = True
        return me != donor

    def _differ(self, group: Communicator, root: int, mine: Array | None) -> Array:
        """A flag for each block that any of those behind has otherwise than the donor."""
        digests = group.share(None if mine is None else mine.tolist(), "digests")
        differs = np.zeros(len(digests[root]), bool)
        for each in digests:
            differs |= each is None or np.not_equal(digests[root], each)
        return differs

    def _told(self, healed: bool) -> Change | None:
        """All changes since the last boundary, as one."""
        changes, self._changes = self._changes, []
        if not changes:
            return Change(self.comm.generation, self.comm.size, (), 0, True) if healed else None
        lost = tuple(rank for each in changes for rank in each.lost)
        return changes[-1]._replace(lost=lost, joined=sum(each.joined for each in changes),
                                    healed=healed or any(each.healed for each in changes))  # fmt: skip


def at_moment(infos: dict[int, Any], size: int) -> list[int]:
    """Of those who have come: the ranks that go on, more than half of the members; none, if no moment has so many.

    Those at a `present` of one position; or all at a boundary, as there who is behind takes the others' state.
    """
    moments: dict[int, list[int]] = {}
    for rank, (moment, position, *_) in infos.items():
        moments.setdefault(position if moment == PRESENT else NOWHERE, []).append(rank)
    return next((ranks for _, ranks in sorted(moments.items(), reverse=True) if 2 * len(ranks) > size), [])
