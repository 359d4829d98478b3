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
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket import Communicator
from hocket.arguments import seconds, whole
from hocket.errors import ArgumentError, MismatchError, PeerLostError, TimeoutError
from hocket.training.crew import blocks
from hocket.training.crew.loading import Server, load
from hocket.training.crew.quorum import Grace
from hocket.training.flat import Array, digest
from hocket.training.outer.members import Again, Replica

log = logging.getLogger("hocket")
BOUNDARY, PRESENT = 0, 1
NOWHERE = -1
"""The position of a state that is not whole: a newcomer's, or one that was being received when its donor died."""
PART = 4
"""Each call in which a state moves may take this part of `timeout`: the donor has time left to come to the others."""


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


class Told(NamedTuple):
    """Words of the donor and those behind before a state moves."""

    numbers: dict[str, Any]
    """The donor's."""
    known: bool
    """Has this rank digests of its blocks?"""
    made: dict[str, Any]
    """Facts that have to be alike: the state's arrays, and what else it says (`made`)."""


class Crew:
    """The members of `comm`, which has to be elastic.

    - `least`: members that a round has at least.
    - `grace`: seconds that those who have come wait for the others; "adaptive": by how long that has usually taken.
    - `on_change(change)`: called when members were lost or came, after the state is one again.
    - `timeout`: seconds for an agreement, and for the members to meet anew: who lives and does not come in that time is
      left out.
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
        self.words: tuple[Any, ...] = ()
        """The state's `word` of each that has come to the latest moment."""
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
    def join(
        cls, join: Any, state: Replica, *, timeout: float = 60.0, secret: str | bytes | None = None,
        encrypt: bool | None = None, iface: str | None = None, **more: Any,
    ) -> Crew:  # fmt: skip
        """A newcomer's: take a member's state while they train, if one serves it, and only then come to the job.

        When the members let it in, what has changed meanwhile is all that moves.  `join`, `secret`, `encrypt` and
        `iface`: as `hocket.init` has them; `timeout`: seconds until they have, and before that for each message of the
        state; `more`: arguments of `Crew`.
        """
        how: dict[str, Any] = {"secret": secret, "encrypt": encrypt, "iface": iface}
        digests = blocks.digests(state.arrays()) if load(join, state, timeout, **how) else None
        crew = cls(hocket.init(join=join, timeout=timeout, **how), timeout=timeout, **more)
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

        Newcomers are let in when nobody is late.  Raises MismatchError (two states of one position; on a newcomer
        alone: its state is made otherwise), TimeoutError (too few come), PeerLostError (the others have gone on without
        this rank).
        """
        self._state = state
        while True:
            try:
                ranks, infos = self._come(state, BOUNDARY)
                waiting = any(infos[rank][3] for rank in ranks)
                if waiting and len(ranks) == self.comm.size:
                    self._renew(state)
                    continue
                healed = self._heal(state, {rank: infos[rank] for rank in ranks})
            except (PeerLostError, TimeoutError) as error:
                self._renew(state, error)
                continue
            self._checked = True
            return self._told(healed)

    @contextlib.contextmanager
    def attempt(self, state: Replica) -> Iterator[Communicator]:
        """A round's work.  A loss inside, or a call that has not ended in time: those who come to meet anew go on with
        one state, and `Again` is raised; also where this rank came too late, and the others have done the round without
        it.  Its part of the round is lost then.
        """
        self._state = state
        try:
            yield self.comm
        except (PeerLostError, TimeoutError) as error:
            self._renew(state, error)
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
            info = [moment, *self._place(state), self.comm.waiting > 0, getattr(state, "word", None)]
            grace, late, timeout = self._grace.seconds, self.left_out, self._timeout
            if getattr(state, "patient", False):
                grace, late, timeout = timeout, (), 2 * timeout
            came = self.comm.come(info, grace=grace, late=late, least=self._least, timeout=timeout)
            if any(how != "late" for how in came.lost.values()):
                raise PeerLostError(f"rank {self.comm.rank}: ranks {sorted(came.lost)} are gone", sorted(came.lost))
            self.left_out = tuple(sorted(came.lost))
            if not came.lost:
                self._grace.note(time.monotonic() - began)
            infos = {rank: info for rank, info in zip(came.ranks, came.infos, strict=True) if is_info(info)}
            ranks = at_moment(infos, self.comm.size)
            if self.comm.rank in ranks:
                self.words = tuple(infos[rank][4] for rank in ranks)
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

    def _renew(self, state: Replica, why: Exception | None = None) -> None:
        """Go on with those who are left, and with newcomers.  The members hold one state then; newcomers take it when
        they come to a boundary, so that nobody waits for one that was let in.  `why`: what went wrong here, if
        anything: then calls of members that wait for this rank end, too.
        """
        while True:
            if why is not None:
                for comm in (self.comm, *self._groups.values()):
                    comm.abort(why)
            before, self._checked = self.comm, False
            self.comm = self._met_anew([BOUNDARY, *self._place(state), False, None])
            self._groups, self.left_out = {}, ()
            stay = [rank for rank in self.comm.previous_ranks if rank is not None]
            lost = tuple(rank for rank in range(before.size) if rank not in stay)
            joined = self.comm.size - len(stay)
            change = Change(self.comm.generation, self.comm.size, lost, joined, False)
            members = {rank: info for rank, info in enumerate(self.comm.infos)
                       if self.comm.previous_ranks[rank] is not None and is_info(info)}  # fmt: skip
            try:
                change = change._replace(healed=self._heal(state, members))
            except (PeerLostError, TimeoutError) as error:
                why = error
                self._changes.append(change)
                continue
            self._changes.append(change)
            if self._on_change is not None:
                self._on_change(change)
            return

    def _met_anew(self, info: list[Any]) -> Communicator:
        """The next generation.  Who lives and has not called in time is silent, and left out."""
        try:
            return self.comm.renew(info, least=self._least, timeout=self._timeout)
        except TimeoutError as error:
            if not error.missing:
                raise
            log.warning("rank %d of a crew goes on without ranks %s: they did not answer within %g s",
                        self.comm.rank, error.missing, self._timeout)  # fmt: skip
            return self.comm.renew(info, without=error.missing, least=self._least, timeout=self._timeout)

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
        self._whole &= me == donor  # until it has come as a whole
        here, rows, group = self._fitting(state, donor, behind)
        mine, self._digests = self._digests, None
        if len(here) == 1:
            return False
        root = here.index(donor)
        arrays = state.arrays()
        limit = self._timeout / PART
        if rows[root].known and any(row.known for row in rows[:root] + rows[root + 1 :]):
            pieces = blocks.runs(arrays, self._differ(group, root, mine))
        else:
            pieces = [array for _, array in sorted(arrays.items())]
        for piece in blocks.cut(pieces):
            group.broadcast(piece, root, timeout=limit)
        if me != donor:
            state.load(rows[root].numbers)
        self._whole = True
        return me != donor

    def _fitting(self, state: Replica, donor: int, behind: list[int]) -> tuple[list[int], list[Told], Communicator]:
        """The donor and who of those behind has a state like its: what they told, and their communicator.

        Who has another one is refused: it raises MismatchError, and the others go on.
        """
        here = sorted((donor, *behind))
        made = {"arrays": {name: f"{x.dtype}{[*x.shape]}" for name, x in sorted(state.arrays().items())},
                **getattr(state, "made", {})}  # fmt: skip
        own = Told(state.numbers() if self.comm.rank == donor else {}, self._digests is not None, made)
        group = self._group(here)
        rows = [Told(*row) for row in group.share(own, "a state", timeout=self._timeout / PART)]
        wanted = rows[here.index(donor)].made
        refused = [rank for rank, row in zip(here, rows, strict=True) if row.made != wanted]
        if self.comm.rank in refused:
            raise MismatchError(f"rank {self.comm.rank} does not fit into this crew: {unlike(own.made, wanted)}")
        for rank in refused:
            its = rows[here.index(rank)].made
            log.warning("rank %d does not fit into this crew: %s", rank, unlike(its, wanted))
        rows = [row for rank, row in zip(here, rows, strict=True) if rank not in refused]
        here = [rank for rank in here if rank not in refused]
        return here, rows, self._group(here) if refused and len(here) > 1 else group

    def _differ(self, group: Communicator, root: int, mine: Array | None) -> Array:
        """A flag for each block that any of those behind has otherwise than the donor."""
        told = None if mine is None else mine.tolist()
        digests = group.share(told, "digests", timeout=self._timeout / PART)
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


def is_info(info: Any) -> bool:
    """Does a crew say this?  A member that runs another program is as one that is late."""
    if not isinstance(info, (list, tuple)) or len(info) != 5:
        return False
    moment, position, its, waiting, _ = info
    return (
        moment in (BOUNDARY, PRESENT) and type(moment) is int and type(position) is int and type(waiting) is bool
        and (its is None or type(its) is int)
    )  # fmt: skip


def at_moment(infos: dict[int, Any], size: int) -> list[int]:
    """Of those who have come: the ranks that go on, more than half of the members; none, if no moment has so many.

    Those at a `present` of one position; or all at a boundary, as there who is behind takes the others' state.
    """
    moments: dict[int, list[int]] = {}
    for rank, (moment, position, *_) in infos.items():
        moments.setdefault(position if moment == PRESENT else NOWHERE, []).append(rank)
    return next((ranks for _, ranks in sorted(moments.items(), reverse=True) if 2 * len(ranks) > size), [])


def unlike(made: dict[str, Any], wanted: dict[str, Any]) -> str:
    """In words, what of a state is not as the members have it.

    >>> unlike({"arrays": {"w": "float32[4]"}, "every": 5}, {"arrays": {"w": "float32[3]"}, "every": 4})
    "array 'w' is float32[4], the members' is float32[3]; every is 5, the members' is 4"
    """
    rows = [{**{f"array {name!r}": x for name, x in each["arrays"].items()}, **each} for each in (made, wanted)]
    its, theirs = ({name: value for name, value in row.items() if name != "arrays"} for row in rows)
    words = [f"{name} is {its.get(name, 'none')}, the members' is {theirs.get(name, 'none')}"
             for name in sorted(its.keys() | theirs.keys()) if its.get(name) != theirs.get(name)]  # fmt: skip
    return "; ".join(words[:5])
