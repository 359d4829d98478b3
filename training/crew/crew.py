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
from typing import Any

import numpy as np

import hocket
from hocket import Communicator
from hocket.arguments import seconds, whole
from hocket.errors import ArgumentError, MismatchError, PeerLostError, TimeoutError
from hocket.training.crew import blocks
from hocket.training.crew import machine as of
from hocket.training.crew.loading import Donor, load
from hocket.training.crew.machine import BOUNDARY, PRESENT, Change, MemberMachine
from hocket.training.crew.quorum import Grace
from hocket.training.flat import Array, digest
from hocket.training.outer.members import Replica

log = logging.getLogger("hocket")
PART = 4
"""Each call in which a state moves may take this part of `timeout`: the donor has time left to come to the others."""
LEAVE = 0.1
"""Seconds that one which does not fit waits for the others to go on."""


class Crew:
    """The members of `comm`, which has to be elastic.

    - `least`: members that a round has at least.
    - `grace`: seconds that those who have come wait for the others; "adaptive": by how long that has usually taken.
    - `on_change(change)`: called when members were lost or came, after the state is one again.
    - `timeout`: seconds for an agreement, and for the members to meet anew: who lives and does not come in that time is
      left out.
    - `replicated`: do all members of one position hold the same bits?  Then two digests are an error.
    - `verify_every`: at the boundaries of these positions, and the first of each generation, the states are compared.
      MismatchError says which ranks' differ, and in which arrays where nobody is late.
    - `serve`: a state that this member sends to newcomers before they come (`Crew.join`).
    """

    def __init__(
        self, comm: Communicator, *, least: int = 1, grace: float | str = "adaptive",
        on_change: Callable[[Change], object] | None = None, timeout: float = 60.0, replicated: bool = True,
        serve: Replica | None = None, verify_every: int = 0,
    ) -> None:  # fmt: skip
        if isinstance(grace, str) and grace != "adaptive":
            raise ArgumentError(f'grace={grace!r} must be seconds, or "adaptive"')
        self.comm = comm
        new = bool(comm.generation) and comm.previous_ranks[comm.rank] is None
        self._machine = MemberMachine(comm.rank, comm.size, comm.generation, new)
        self._least, self._timeout = whole(least, "least"), seconds(timeout, "timeout")
        self._grace = Grace(grace if isinstance(grace, str) else seconds(grace, "grace"))
        self._on_change, self._replicated = on_change, replicated
        self._verify = whole(verify_every, "verify_every")
        if self._verify and not replicated:
            raise ArgumentError("verify_every= compares states that are to be alike: not with replicated=False")
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._late: dict[int, float] = {}
        """The late ones, and since when."""
        self._state: Any = None
        self._rows: dict[int, Any] = {}
        """The rest of their states, of the donor and who is behind."""
        self._digests: Array | None = None
        """Digests of the blocks of a state that has not changed since."""
        self._server = None if serve is None else Donor(comm, serve)

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
        """The generation of the members' communicator."""
        return self.comm.generation

    @property
    def left_out(self) -> tuple[int, ...]:
        """Ranks that did not come to the latest moment in time."""
        return self._machine.left_out

    @property
    def words(self) -> tuple[Any, ...]:
        """The state's `word` of each that has come to the latest moment."""
        return self._machine.words

    def boundary(self, state: Replica) -> Change | None:
        """Come to the boundary between two rounds: then all who are here hold one state.  What has changed, or None.

        Newcomers are let in when nobody is late, or only who has been for `timeout`: that loses its place.  Raises
        MismatchError (two states of one position; on a newcomer alone, which leaves: its state is made otherwise),
        TimeoutError (too few come, or a generation did not begin, twice), PeerLostError (the others have gone on
        without this rank; or nobody is left who holds the state).
        """
        self._state = state
        compares = self._verify > 0 and state.position % self._verify == 0
        comes = of.Comes(BOUNDARY, state.position, getattr(state, "patient", False), compares)
        try:
            change: Change | None = self._done(comes)
        except MismatchError as error:
            raise self._named(error) from None
        return change

    def _named(self, error: MismatchError) -> MismatchError:
        """With the names of the arrays that differ, if all members have this error, and live on."""
        if not self._verify or not error.calls or self.left_out:
            return error
        try:
            found = self.comm.check_equal(self._state.arrays(), timeout=self._timeout / PART)
        except (PeerLostError, TimeoutError):
            return error
        parts = ", ".join(f"{name} on ranks {groups}" for name, groups in list(found.items())[:5])
        return MismatchError(f"{error}: {parts}", error.calls)

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
            self._done(of.Breaks(state.position, error))

    def present(self) -> Communicator:
        """The communicator of those who have come to this point of the round; for one sum, say.

        Raises Again where this rank came too late.  Call it in `attempt`.
        """
        if self._state is None:
            raise ArgumentError("present: call boundary(state) first")
        patient = getattr(self._state, "patient", False)
        return self._group(self._done(of.Comes(PRESENT, self._state.position, patient)))

    # --- what the machine says is done

    def _done(self, event: Any) -> Any:
        """Until the moment is over."""
        while True:
            *first, last = self._machine.take(event)
            for each in first:
                CARRY[type(each)](self, each)
            if isinstance(last, of.Return):
                return last.result
            if isinstance(last, of.Raise):
                raise last.error
            try:
                event = CARRY[type(last)](self, last)
            except (PeerLostError, TimeoutError) as error:
                event = of.Fails(error, getattr(error, "missing", ()), getattr(error, "called", ()))

    def _come(self, come: of.Come) -> of.Came:
        began, grace, timeout = time.monotonic(), self._grace.seconds, self._timeout
        if come.patient:
            grace, timeout = min(timeout, self.comm.timeout), 2 * timeout
        word = getattr(self._state, "word", None)
        says = come.says._replace(digest=self._digest(come.compared), waiting=self.comm.waiting > 0, word=word)
        came = self.comm.come(list(says), grace=grace, late=come.late, least=self._least, timeout=timeout)
        if not came.lost:
            self._grace.note(time.monotonic() - began)
        elif come.patient:
            log.warning("rank %d of a crew ends without ranks %s: late by %g s", self.comm.rank, [*came.lost], grace)
        now = time.monotonic()  # of whom this rank has heard just now, it has only just heard
        self._late = {rank: self._late.get(rank, now) for rank in came.lost}
        overdue = frozenset(rank for rank, since in self._late.items() if now - since > self._timeout)
        return of.Came(of.said(zip(came.ranks, came.infos, strict=True)), came.lost, overdue)

    def _digest(self, compared: bool) -> int | None:
        """The state's, where it is to be compared.  A whole state has changed since its blocks' were made."""
        if self._machine.whole:
            self._digests = blocks.digests(self._state.arrays()) if compared and self._replicated else None
        return None if not compared or self._digests is None else digest(self._digests)

    def _meet(self, meet: of.Meet) -> of.Met:
        word = getattr(self._state, "word", None)
        info = list(meet.says._replace(digest=self._digest(self._machine.whole), word=word))
        self.comm = self.comm.renew(info, without=meet.without, least=self._least, timeout=self._timeout)
        self._groups, self._late = {}, {}
        infos = of.said(enumerate(self.comm.infos))
        return of.Met(self.comm.generation, self.comm.rank, infos, self.comm.previous_ranks)

    def _fit(self, fit: of.Fit) -> of.Fitted:
        state, donor = self._state, self.comm.rank == fit.donor
        made = {"arrays": {name: f"{x.dtype}{[*x.shape]}" for name, x in sorted(state.arrays().items())},
                **getattr(state, "made", {})}  # fmt: skip
        own = [state.numbers() if donor else {}, self._digests is not None, made]
        rows = self._group(fit.ranks).share(own, "a state", timeout=self._timeout / PART)
        self._rows = {rank: numbers for rank, (numbers, *_) in zip(fit.ranks, rows, strict=True)}
        known = frozenset(rank for rank, (_, known, _) in zip(fit.ranks, rows, strict=True) if known)
        return of.Fitted({rank: made for rank, (*_, made) in zip(fit.ranks, rows, strict=True)}, known)

    def _move(self, move: of.Move) -> of.Moved:
        group, root, arrays = self._group(move.ranks), move.ranks.index(move.donor), self._state.arrays()
        mine, self._digests = self._digests, None
        if move.blocks:
            pieces = blocks.runs(arrays, self._differ(group, root, mine))
        else:
            pieces = [array for _, array in sorted(arrays.items())]
        kept = [piece.copy() for piece in pieces if move.keeps and self.comm.rank != move.donor]
        try:
            for piece in blocks.cut(pieces):
                group.broadcast(piece, root, timeout=self._timeout / PART)
        except (PeerLostError, TimeoutError):
            for piece, own in zip(pieces, kept, strict=False):
                piece[...] = own
            raise
        if self.comm.rank != move.donor:
            self._state.load(self._rows[move.donor])
        return of.Moved()

    def _differ(self, group: Communicator, root: int, mine: Array | None) -> Array:
        """A flag for each block that any of those behind has otherwise than the donor."""
        told = None if mine is None else mine.tolist()
        digests = group.share(told, "digests", timeout=self._timeout / PART)
        differs = np.zeros(len(digests[root]), bool)
        for each in digests:
            differs |= each is None or np.not_equal(digests[root], each)
        return differs

    def _leave(self, leave: of.Leave) -> None:
        self.comm.close(timeout=LEAVE, log_as=f"rank {self.comm.rank} of a crew")

    def _tell(self, tell: of.Tell) -> None:
        if self._on_change is not None:
            self._on_change(tell.change)

    def _note(self, note: of.Note) -> None:
        log.warning(note.text)

    def _group(self, ranks: Sequence[int]) -> Communicator:
        """The communicator of these ranks, made once for each set."""
        key = tuple(ranks)
        if len(key) == self.comm.size:
            return self.comm
        if key not in self._groups:
            self._groups[key] = self.comm.create_group(key, f"crew {key}", timeout=self._timeout / PART)
        return self._groups[key]


CARRY: dict[type, Callable[[Crew, Any], Any]] = {
    of.Come: Crew._come, of.Meet: Crew._meet, of.Fit: Crew._fit, of.Move: Crew._move,
    of.Leave: Crew._leave, of.Tell: Crew._tell, of.Note: Crew._note,
}  # fmt: skip
