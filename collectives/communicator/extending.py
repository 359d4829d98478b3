"""A communicator offers this to those who build on it: frameworks, `hocket.compression`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from hocket.collectives.arrays.buffers import describe
from hocket.collectives.base.config import Config
from hocket.collectives.base.groups import at_once
from hocket.collectives.calls.ask import Ask
from hocket.collectives.calls.call import Call
from hocket.collectives.choice.tuning import Tuning
from hocket.collectives.communicator.ending import Ending
from hocket.collectives.communicator.planner import NO_OP
from hocket.collectives.communicator.runner import Runner
from hocket.collectives.engine.engine import CODES
from hocket.collectives.failures.reporting import Reporter
from hocket.collectives.job.world import World
from hocket.collectives.members.members import Members
from hocket.collectives.waiting.queued import Queued

DONE, BUSY = CODES["done"], CODES["busy"]
DIRECT_TO = 16
"""Ranks up to which all blocks of an alltoall go at once, as those of alltoallv do."""


class Extending:
    """A part of `Communicator`, which users seldom need."""

    world: World
    membership: Members
    reporter: Reporter
    runner: Runner
    ending: Ending

    @at_once
    def share(self, value: Any, within: str = "share()", timeout: float | None = None) -> list[Any]:
        """All ranks' values, by rank: numbers, texts, None, lists, and dicts with texts as keys, as JSON has them.

        Nothing is pickled, so HOCKET_OBJECTS=0 allows it.  Tuples come as lists.  `within`: the name of the call that
        this is a part of, for errors.  Cost: two allgathers.  Raises ArgumentError, on this rank alone, for what JSON
        does not have.

        >>> import hocket
        >>> hocket.local_world(2).run(lambda comm: comm.share({"rank": comm.rank}))[0]
        [{'rank': 0}, {'rank': 1}]
        """
        return self.runner.share(value, within, timeout)

    def in_order(self, within: str, passed: Callable[[], tuple[list[int], list[int]]]) -> None:
        """All calls here are a part of `within`, and follow each other on every rank, messages and collectives alike.

        `passed()`: how many messages this rank has begun to send to each rank, and how many to take from each.  A rank
        that waits in a collective and one that waits in a message which does not go with it then hear so within half a
        second, as a MismatchError, and so do ranks whose messages wait for each other.
        """
        self.membership.within, self.membership.passed = within, passed

    def exchange_blocks(self, nbytes: int, sends: Sequence[int], receives: Sequence[int], within: str = "") -> None:
        """An alltoall of blocks that do not lie one behind the other: of `nbytes` each, at these addresses, by rank.

        The entries of this rank itself are not read: its own block stays.  How the blocks lie to each other is a part
        of the plan, so ranks that let it change with every call pay for one each time (some 100 us).
        """
        rank, queue, reporter = self.membership.rank, self.membership.main, self.reporter
        src, dst = (min(a for r, a in enumerate(at) if r != rank) for at in (sends, receives))
        places = tuple(
            tuple(0 if r == rank else a - first for r, a in enumerate(at))
            for at, first in ((sends, src), (receives, dst))
        )  # fmt: skip
        reporter.usable()
        key, timeout = ("exchange", nbytes, places, within), self.membership.timeout
        plan = queue.engine.plans.get(key)
        if plan is None:
            count = nbytes * self.membership.size
            memory: Any = ctypes.c_uint8 * count
            x, out = (describe(numpy.frombuffer(memory.from_address(at), "u1")) for at in (src, dst))
            each = (nbytes,) * (2 * self.membership.size)
            call = Call("alltoall", x, out, count, counts=each, places=(places[0], places[1]))
            algorithm = "direct" if self.membership.size <= DIRECT_TO else "pairwise"
            plan = self.runner.planner.plan(queue, call, NO_OP, Ask("alltoall", algorithm=algorithm, within=within))
            queue.keep(key, plan)
        code, queued = queue.engine.execute(plan, src, dst, timeout=timeout), None
        if code == BUSY:
            queued = Queued(queue.engine, plan, src, dst, timeout=timeout)
            queued.wait()
            code = queued.status
        if code != DONE:
            culprit = queue.engine.culprit if queued is None else queued.culprit
            reporter.fail(queue.engine, code, culprit, timeout, queued)

    def raise_failed(self, code: int) -> None:
        """Raise what a collective has come to that a caller's own C code has run here; `code`: the engine's."""
        engine = self.membership.main.engine
        self.reporter.fail(engine, code, engine.culprit, self.membership.timeout)

    def abort(self, error: BaseException, tell: bool = True) -> None:
        """This rank fails with `error`: calls of all ranks that need it end now with PeerLostError, which quotes it.

        Calls that this rank has finished, the others may finish.  The first error counts: nothing changes if the
        communicator has failed before, or is closed.  Never waits; any thread may call it.  `tell=False`: this rank's
        own calls end, and the others learn only that it has left.

        >>> import hocket
        >>> def failing(comm):
        ...     if comm.rank == 0:
        ...         return comm.abort(ValueError("no more data"))
        ...     try:
        ...         comm.barrier()
        ...     except hocket.PeerLostError as error:
        ...         return error.ranks, "no more data" in str(error)
        >>> hocket.local_world(2).run(failing)[1]
        ((0,), True)
        """
        self.reporter.give_up(error, tell)

    def drop(self) -> None:
        """For finalizers: this communicator will not be used any more, and was not closed.  Never waits, takes no lock.

        The communicator of `hocket.init` then leaves the job in the background, once calls under way have ended; the
        others may finish the calls that this rank has finished.  It stays while another one made from it is in use.
        One that was made from another is left to that one's end.
        """
        self.ending.drop()

    def retune(self, tuning: Tuning) -> None:
        """Choose algorithms by this from now on.  All ranks call it between the same calls, with equal ones.

        `tuning`: what `tune` returned, or `comm.tuning` of another communicator.
        """
        self.runner.retune(tuning)

    def whereabouts(self, what: str, seconds: float, late: Sequence[int]) -> str:
        """For a log: a line for each of these ranks, which hold up `what` for so long by now: what it does, and where.

        The last line names a file of what all ranks of this host did last.  Not collective: ranks that are alive answer
        within half a second, whatever their program does; of others their recorder tells.  Any thread may call it.

        >>> import hocket
        >>> def late(comm):
        ...     said = comm.whereabouts("a tensor", 2.0, [1]) if comm.rank == 0 else ""
        ...     comm.barrier()
        ...     return said.startswith("\\n  rank 1 ")
        >>> hocket.local_world(2).run(late)
        [True, False]
        """
        return self.reporter.long_waits.whereabouts(what, seconds, late, self.reporter.account())

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks of this communicator that were lost, as this rank has heard: they died, or do not answer."""
        known = self.world.gone.lost
        also = self.world.elastic.lost(self.world.generation) if self.world.elastic is not None else ()
        return tuple(r for r, member in enumerate(self.membership.world_ranks) if member in known or member in also)

    @property
    def address(self) -> str | None:
        """The address at which ranks of other hosts reach this one; None if no rank is known to need it."""
        return self.world.config.iface or self.world.session.local_address

    @property
    def sequence(self) -> int:
        """The number of collectives that this rank has begun here, but for those on GPU arrays or with `transport=`."""
        return int(self.membership.main.engine.sequence)

    @property
    def config(self) -> Config:
        """The settings of the environment and of `hocket.init`: HOCKET_TIMEOUT is `config.timeout`.  Only to read."""
        return self.world.config

    @property
    def mpi(self) -> bool:
        """Can calls use the job's MPI library (`algorithm="mpi"`)?  The same on all ranks."""
        return self.world.mpi is not None
