"""A communicator of a job that outlives its ranks (`hocket.init(elastic=True)`)."""

from __future__ import annotations

import json
import reprlib
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hocket.arguments import rank_in, seconds, whole, wholes
from hocket.collectives.base.groups import at_once
from hocket.collectives.job.outliving import Outliving
from hocket.collectives.job.world import World
from hocket.errors import ArgumentError, PeerLostError, TimeoutError

if TYPE_CHECKING:
    from hocket.collectives.communicator.communicator import Communicator


def as_json(info: Any, what: str) -> Any:
    """`info` as the other ranks get it.  ArgumentError: JSON does not have it."""
    try:
        return json.loads(json.dumps(info))
    except (TypeError, ValueError, RecursionError) as why:
        raise ArgumentError(f"{what}: {reprlib.repr(info)} must be JSON: {why}") from None


class Came(NamedTuple):
    """The ranks of a round of an elastic job: ranks, what each said, and why the others are not here."""

    ranks: tuple[int, ...]
    infos: tuple[Any, ...]
    lost: dict[int, str]
    """ "dead", "left", "unreachable", or "late", by rank."""


class Renewing:
    """A part of `Communicator`."""

    world: World
    name: str
    rank: int
    size: int

    @at_once
    def renew(
        self, info: Any = None, *, admit: bool = True, without: Sequence[int] = (), least: int = 1,
        timeout: float = 10.0,
    ) -> Communicator:  # fmt: skip
        """Go on with the ranks that live, and with newcomers: the next generation's communicator.

        All members call it, after a loss or to let newcomers in; also on a communicator that has failed, which ends
        with it.  Members keep their order, newcomers come behind.  Named lanes exist again; other communicators do not.

        - `info`: what this rank tells the others (JSON): `infos` of the new communicator has it, by rank.
        - `admit`: whether newcomers are let in.  All members have to say so.
        - `without`: ranks that are left out, and can never come back, though they may live.
        - `least`: members that the next generation has at least; newcomers count.
        - `timeout`: seconds.

        A member that is connected and has not called is waited for.  A rank whose death its host's kernel proves is
        not.  If others are silent, more than half of the members must be here, or half with the grant of a store
        (`init(store=)` with `first`), so two parts of a job never both go on.  A loss meanwhile begins it again.

        Raises TimeoutError (`missing`: who is there and has not called; nobody, where all had called and the next
        generation did not begin in time), PeerLostError (the others have gone on without this rank), ArgumentError (the
        job is not elastic, or info is not JSON).  After a TimeoutError it may be called
        again.  Cost: 5 short messages a rank, then what `init` costs after the ranks have started.

        >>> import hocket
        >>> comm = hocket.init(elastic=True)
        >>> made = comm.renew({"step": 7})
        >>> made.generation, made.size, made.infos, made.previous_ranks
        (1, 1, ({'step': 7},), (0,))
        >>> made.close()
        """
        elastic = self._of_elastic("renew")
        left_out = [rank_in(self.size, rank, "without") for rank in wholes(without, "without")]
        if self.rank in left_out:
            raise ArgumentError(f"renew: without={left_out} names this rank, {self.rank}")
        info = as_json(info, "renew")
        limit, wanted = seconds(timeout, "timeout"), whole(least, "least")
        made: Communicator = elastic.renew(self, info, bool(admit), left_out, wanted, limit)
        return made

    @at_once
    def come(
        self, info: Any = None, *, grace: float = 1.0, late: Sequence[int] = (), least: int = 1,
        timeout: float | None = None,
    ) -> Came:  # fmt: skip
        """Come to the next round of this generation: who else has come, on which all of them agree.

        Members call it again and again; each call is a round.  Who has not come `grace` seconds after this rank, and is
        in nobody's `late`, is waited for.  More than half of the members have to come, or all that are not proven to be
        dead.  A rank that is not in `ranks` of its own round came too late, or the others did not wait for it.

        - `info` (JSON): `infos` has it.  `late`: ranks that this one does not wait for.  `least`: as in `renew`.
        - `timeout`: seconds; default as for calls.

        Raises TimeoutError, PeerLostError (the members have agreed on another generation: call `renew`), ArgumentError.
        Cost: 5 short messages a rank.

        >>> import hocket
        >>> comm = hocket.init(elastic=True)
        >>> comm.come("here")
        Came(ranks=(0,), infos=('here',), lost={})
        >>> comm.close()
        """
        elastic = self._of_elastic("come")
        tardy = [rank_in(self.size, rank, "late") for rank in wholes(late, "late")]
        limit = cast("Communicator", self).timeout if timeout is None else seconds(timeout, "timeout")
        outcome = elastic.come(self.generation, as_json(info, "come"), seconds(grace, "grace"), tardy, least, limit)
        if outcome is None:
            raise PeerLostError(f"rank {self.rank}: the others have left this communicator: call renew()", [])
        if isinstance(outcome, list):
            missing = f"missing: ranks {outcome}"
            raise TimeoutError(f"rank {self.rank}: too few members came within {limit:g} s; {missing}", outcome)
        return Came(outcome.members, outcome.infos, dict(outcome.lost))

    @property
    def generation(self) -> int:
        """The number of times that the members have changed, or agreed that they do not, since the job began."""
        return self.world.generation

    @property
    def infos(self) -> tuple[Any, ...]:
        """Each member's word in the `renew` that made this, by rank, or a newcomer's in `init(info=)`."""
        return self.world.infos

    @property
    def previous_ranks(self) -> tuple[int | None, ...]:
        """The rank that each member had in the communicator that this rank renewed; None: it is new."""
        return self.world.previous_ranks

    def ranks_in(self, earlier: Communicator) -> tuple[int | None, ...]:
        """The rank that each member had in an earlier generation's communicator, which may be several `renew` ago.

        None: it was no member there.  The last 16 generations are known.
        """
        return self._of_elastic("ranks_in").ranks_in(self.generation, earlier.generation)

    def following(self) -> Callable[[], Communicator | None]:
        """A function that gives this communicator, or what the latest `renew` has returned; None: it was dropped.

        For who watches a job, and does not keep it alive.
        """
        if self.world.elastic is not None and self.name == "world":
            latest: Callable[[], Communicator | None] = self.world.elastic.latest
            return latest
        return weakref.ref(cast("Communicator", self))

    @property
    def previous_lost(self) -> dict[int, str]:
        """The members of the renewed communicator that are none of this one, by their rank there, and why.

        "dead" (its host's kernel says so), "left", "unreachable", "excluded" (by `without=`).  All members agree on it.
        """
        return dict(self.world.previous_lost)

    @property
    def waiting(self) -> int:
        """The number of newcomers that wait to be let in, as this rank has heard.  Local and free."""
        return 0 if self.world.elastic is None else self.world.elastic.waiting()

    @property
    def door(self) -> str | None:
        """The address at which newcomers find this rank: `hocket.init(join=)` takes it.  None: no elastic job."""
        return None if self.world.elastic is None else self.world.elastic.door()

    def set_notice(self, notice: Any) -> None:
        """Set this rank's notice to those who may come (JSON), in this generation and later ones: `hosting.notice`
        asks."""
        self._of_elastic("set_notice").set_notice(as_json(notice, "set_notice"))

    def when_changed(self, call: Callable[[], object]) -> None:
        """Call this when a member is lost or a newcomer comes, also while the program computes.

        It is called on a thread of hocket's, must not block, and is forgotten with this communicator.  `lost` and
        `waiting` say what has changed.
        """
        self._of_elastic("when_changed").when_changed(call)

    def _of_elastic(self, what: str) -> Outliving:
        if self.world.elastic is None:
            raise ArgumentError(f"{what}: this job is not elastic: hocket run --elastic, or hocket.init(elastic=True)")
        if self.name != "world":
            raise ArgumentError(
                f"{what}: communicator {self.name!r} was made from another one: use the one that hocket.init() returned"
            )
        return self.world.elastic
