"""The Communicator: an ordered set of ranks, and everything they can do together.

All ranks call a collective, in the same order, with the same dtype, shape, op and root.  If they differ, all of them
raise MismatchError; finding that costs no extra round trip.  Every call also takes

    async_op=False    True: return a `Work` at once
    timeout=None      seconds; default HOCKET_TIMEOUT (300)
    algorithm=None    a name (`hocket.algorithms.names`) or an `Algorithm`, instead of the choice by size
    transport=None    "shm", "tcp", ...: use only this transport

and five of them (their signatures say which)

    codec=None        "fp16", "bf16", "int8", "fp8", "int4", "sign" or one of hocket.compression's: float32 is sent as
                      that, and comes back as float32 (ops sum and avg); "auto": bf16 or int8 where that is faster

and with a codec allreduce, reduce_scatter, allgather, alltoall and their v-variants

    residual=None     (before, after), error feedback: x + before is encoded, and `after` becomes what that loses, in
                      units of x whatever the op.  float32 of x's shape, contiguous, in host memory.  `before` is not
                      written: a call that failed or brought a NaN changes nothing until the caller takes `after` for
                      the next call's `before`.  One array is both; `before` may be None, for zeros; `after` may be x
                      where the result is not.  All ranks give one, or none does.  Where ranks of a host add up first,
                      the one that encodes the sum has in `after` what that loses, and the others have zeros

`op` is a name (sum, prod, min, max, avg, ...), `premul_sum(factor)`, `expression(text)` on GPUs, or a function of two
arrays.  A function gets pieces of the ranks' arrays, flattened to one dimension and of any length, and returns an array
of that length and dtype.  It must work element by element, be associative, and write into neither of its arguments.

A number, Python's or NumPy's, is an array of one element: `loss = comm.allreduce(loss)` gives a new number.

`allreduce` and `broadcast` also take a list, a tuple or a dict of arrays, nested as one likes, whose arrays are changed
in place.  All ranks' trees have the same structure; a dict's arrays are taken in the order of its sorted keys.  Small
arrays of one dtype go as one message (up to 4 KiB each inside a host, 64 KiB over a network), which costs two copies.

Arrays are NumPy arrays, torch tensors, CuPy arrays, or anything with the buffer protocol.  Those that are not
contiguous are packed into a copy, and unpacked; on a GPU they are refused.  Results are of the caller's kind.  Rows are
counted on axis 0.  In costs, n is the bytes of the longest array of a rank, and p = size.

Every call may raise ArgumentError (this rank's arrays or arguments are wrong) or MemoryError (there is no room for its
result).  It may raise MismatchError, PeerLostError, TimeoutError or TransportError on all ranks; after one of these the
communicator refuses calls.  All are `hocket.Error`.
"""
from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any

from hocket.algorithms.language.contract import CONTRACTS, reduces
from hocket.algorithms.language.registry import Algorithm
from hocket.arguments import choices, texts, whole, wholes
from hocket.arguments import seconds as valid_seconds
from hocket.collectives.arrays.buffers import describe
from hocket.collectives.base.groups import at_once
from hocket.collectives.calls.ask import Ask, checked
from hocket.collectives.calls.numbers import KINDS
from hocket.collectives.calls.ops import Op
from hocket.collectives.choice.tuning import Tuning
from hocket.collectives.communicator.ending import Ending
from hocket.collectives.communicator.equality import Equality
from hocket.collectives.communicator.explain import explain
from hocket.collectives.communicator.extending import Extending
from hocket.collectives.communicator.lanes import Laned
from hocket.collectives.communicator.messenger import Message, Messenger
from hocket.collectives.communicator.objects import Objects
from hocket.collectives.communicator.observing import Observing
from hocket.collectives.communicator.planner import Planner
from hocket.collectives.communicator.point_to_point import PointToPoint
from hocket.collectives.communicator.renewing import Renewing
from hocket.collectives.communicator.runner import Runner
from hocket.collectives.communicator.stats import Stat, stats
from hocket.collectives.failures.reporting import Reporter
from hocket.collectives.gpu.gpus import Gpus
from hocket.collectives.job.world import World
from hocket.collectives.layouts.redistributing import Redistributing
from hocket.collectives.members.members import Groups, Members
from hocket.collectives.quick.prepared import Prepared, PreparedCollective, PreparedMessage
from hocket.errors import ArgumentError

PARTS = frozenset({
    "ending", "gpus", "membership", "messenger", "reporter", "runner", "shortcut", "world",
})  # fmt: skip
"""Attributes for other parts of the library, which users do not need."""


class Communicator(PointToPoint, Objects, Equality, Laned, Extending, Observing, Redistributing, Renewing):
    """An ordered set of `size` ranks, of which this one is `rank`.

    `hocket.init`, `hocket.from_mpi`, `split`, `dup`, `subgroup`, `create_group` and `hocket.local_world` make them.

    Its parts: who belongs to it (`membership`), how collectives (`runner`, and `shortcut` for those made before) and
    messages (`messenger`) are carried out, what is told when it fails (`reporter`), how it is left (`ending`).
    """

    def __init__(
        self, world: World, name: str, members: Sequence[int], tuning: Tuning | None = None, priority: int = 0
    ) -> None:
        self.world, self.name = world, name
        self.membership = Members(world, name, members, tuning, priority)
        self.rank, self.size = self.membership.rank, self.membership.size
        self.reporter = Reporter(self.membership)
        for kind in ("collectives", "messages"):
            self.membership.queues[kind, None] = self.membership.make_queue(kind, None, self.reporter)
        planner = Planner(self.membership, self.reporter)
        self.runner = Runner(self.membership, self.reporter, planner)
        self.messenger = Messenger(self.membership, self.reporter, planner, self.runner)
        self.ending = Ending(self.membership, self.reporter, planner, self.gpus, self.messenger)
        self._set_shortcut(self.runner.shortcut)
        self._set_messages(self.messenger.short)
        self._serial = 0
        """All members have made so many communicators of this one: a part of their names, so that none has another's.
        Messages of one that was closed may still be on their way."""
        self._lanes = {}
        world.admit(self)

    # --- collectives with work of their own; collectives.pyx and point_to_point.pyx have the other calls

    def prepare(
        self, collective: str, x: Any = None, out: Any = None, op: Op | None = None, root: int = 0,
        algorithm: str | Algorithm | None = None, order: str = "any", *, dest: int | None = None,
        source: int | None = None, tag: int | None = 0,
    ) -> Prepared:
        """A call to be made again and again with these arrays: `call()` makes it, `call.start()` asynchronously.

        `collective`: "allreduce", "reduce", "reduce_scatter", "allgather", "broadcast", "gather", "scatter",
        "alltoall", "scan" or "exscan"; or "send", "recv" or "sendrecv", to `dest`, from `source`, with `tag`.  The rest
        as in that call, whose `codec`, `timeout` and `transport` it does not take.  Names are bound to values once, so
        a short call costs less; results go into `out`, or x, or a new array each time.  Not collective: some ranks may
        prepare what others call by name.  What is wrong with the arguments is told by the first call.  MPI's persistent
        collectives and messages.

        >>> import hocket, numpy as np
        >>> def twice(comm):
        ...     x = np.ones(2)
        ...     call = comm.prepare("allreduce", x)
        ...     call()
        ...     return call().tolist()
        >>> hocket.local_world(3).run(twice)[0]
        [9.0, 9.0]
        """
        if collective in ("send", "recv", "sendrecv"):
            if (op, root, algorithm, order) != (None, 0, None, "any"):
                raise ArgumentError(f"prepare: {collective!r} takes no op, root, algorithm or order")
            return PreparedMessage(self, self.messenger, collective, x, dest, out, source, tag)
        if collective not in CONTRACTS:
            raise ArgumentError(f"prepare: {collective!r} is not a collective; {choices(collective, CONTRACTS)}")
        if (dest, source, tag) != (None, None, 0):
            raise ArgumentError(f"prepare: {collective!r} takes no dest, source or tag")
        if isinstance(x, KINDS):
            raise ArgumentError("prepare: x is a number, which no call changes; give an array of one element")
        if op is None and reduces(collective):
            op = "sum"
        order = "rank" if CONTRACTS[collective].ordered and order == "any" else order
        asked = Ask(collective, op, whole(root, "root"), algorithm=algorithm, order=order)
        return PreparedCollective(self, x, out, asked)

    # --- between two ranks

    def probe(self, source: int | None = None, tag: int | None = 0, timeout: float | None = None) -> Message | None:
        """Wait for the message that `recv` with this source (None: any rank) and tag (None: any) would take next.

        For messages whose sender, tag, size or dtype are not known before.  Returns a `Message` (source, tag, dtype,
        nbytes, count), or None if no message came within `timeout` seconds (0: look once; None: wait for ever).  A
        message that an asynchronous `recv` waits for is that one's.  MPI's Probe and Iprobe.

        >>> import hocket, numpy as np
        >>> def any_length(comm):
        ...     if comm.rank:
        ...         return comm.send(np.arange(5), 0)
        ...     message = comm.probe()
        ...     return comm.recv(np.empty(message.count, message.dtype), message.source).tolist()
        >>> hocket.local_world(2).run(any_length)[0]
        [0, 1, 2, 3, 4]
        """
        limit = checked(Ask("message", timeout=timeout)).timeout if timeout != 0 else 0.0
        return self.messenger.probe(*self.messenger.wanted(source, tag), limit)

    # --- communicators

    @at_once
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Make one communicator for each color, its ranks ordered by (key, old rank); None for color None."""
        color, key = None if color is None else whole(color, "color"), whole(key, "key")
        rows = self.runner.share([color, key], "split()")
        self._serial += 1
        mine = sorted((k, r) for r, (c, k) in enumerate(rows) if c == color)
        members = [self.members[r] for _, r in mine]
        name = f"{self.name}/{self._serial}.{color}"
        child = None if color is None else type(self)(self.world, name, members, self.tuning)
        offers = self.runner.share(child.membership.offer() if child is not None else None, "split()")
        if child is not None:
            child.membership.accept([offers[self.members.index(r)] for r in child.members])
        return child

    @at_once
    def dup(self, idle: bool = False) -> Communicator:
        """Make a communicator of the same ranks, with an order of calls of its own.

        `idle`: its calls wait for what may not come for hours.  They sleep soon, no log tells of long
        waits, and they may be open at the end of the job.
        """
        copy = self.split(0)
        assert copy is not None
        if idle:
            copy.membership.idle()
        return copy

    @at_once
    def subgroup(self, ranks: Sequence[int]) -> Communicator | None:
        """Make a communicator of these ranks, in this order.  All ranks of this one call it; the others get None."""
        ranks = [self.membership.checked(r, "ranks") for r in wholes(ranks, "ranks")]
        if len(set(ranks)) < len(ranks):
            raise ArgumentError(f"ranks={ranks} names a rank twice")
        return self.split(0 if self.rank in ranks else None, ranks.index(self.rank) if self.rank in ranks else 0)

    @at_once
    def create_group(self, ranks: Sequence[int], name: str, *, timeout: float | None = None) -> Communicator:
        """Make a communicator of these ranks, in this order.  Only they call it.  MPI's Comm_create_group.

        `name` is the same on all of them, and of no other communicator made of this one.  If one of them does not come
        within `timeout` seconds, this communicator ends too.  Ranks that share several groups make them in one order.
        """
        if not isinstance(name, str):
            raise ArgumentError(f"name={reprlib.repr(name)} must be a string")
        ask = checked(Ask("message", timeout=timeout))
        ranks = [self.membership.checked(r, "ranks") for r in wholes(ranks, "ranks")]
        if len(set(ranks)) < len(ranks) or self.rank not in ranks:
            raise ArgumentError(f"ranks={ranks} must name {self.rank}, which calls this, and each rank once")
        child = type(self)(self.world, f"{self.name}/{name}", [self.members[r] for r in ranks], self.tuning)
        child.membership.accept(self.messenger.share_among(ranks, child.name, child.membership.offer(), ask))
        return child

    def register(self, x: Any) -> None:
        """Let other ranks of this host read `x`, on a GPU, where it lies, when calls send long pieces of it.

        That saves a copy into this communicator's window, two fifths of the traffic (docs/gpu.md).  The call is local:
        each rank makes it or not.  It registers the whole allocation that x is part of.  x is kept until this
        communicator is closed, as peers map its memory.  Where they cannot, calls go on as without, and `explain` says
        why.  Raises ArgumentError (x is not on a GPU).  NCCL's ncclCommRegister.
        """
        self.reporter.usable()
        self.gpus.register(describe(x))

    # --- about it

    @property
    def members(self) -> list[int]:
        """The ranks of `hocket.init`'s communicator that belong to this one, in its order."""
        return self.membership.world_ranks

    @property
    def tuning(self) -> Tuning:
        """The measurements that algorithms are chosen by; the same on all ranks."""
        return self.membership.tuning

    @property
    def timeout(self) -> float:
        """Seconds that a call may wait for other ranks, if it does not say so itself."""
        return self.membership.timeout

    def set_timeout(self, seconds: float) -> None:
        """Set the seconds that calls wait for other ranks from now on, unless they say so themselves; at first
        HOCKET_TIMEOUT.

        math.inf: for ever, and no log tells of long waits.
        """
        self.membership.timeout = valid_seconds(seconds, "seconds")
        self.membership.idles = self.membership.idles or seconds == math.inf
        self.shortcut.set_timeout(self.membership.timeout)
        self.messenger.short.set_timeout(self.membership.timeout)

    @property
    def groups(self) -> Groups:
        """The ranks that reach each other inside a host, host by host."""
        return self.membership.groups

    @property
    def gpus(self) -> Gpus:
        """The members' GPUs, as far as they are known."""
        return self.runner.gpus

    @property
    def host(self) -> int:
        """The number of this rank's host among this communicator's hosts, which are ordered by their first ranks.

        Ranks are on one host if they share memory; where they do not, if they name the same kernel, host name and
        folder for temporary files.  `comm.split(comm.host)` makes a communicator of each host.
        """
        return next(i for i, here in enumerate(self.membership.hosts) if self.rank in here)

    @property
    def local_rank(self) -> int:
        """This rank's place among this communicator's ranks on its host: 0 to local_size - 1, in rank order.

        To choose a GPU, use the local rank of the communicator of `hocket.init`: one that `split` made counts only its
        own ranks.
        """
        return self.membership.hosts[self.host].index(self.rank)

    @property
    def local_size(self) -> int:
        """The number of ranks of this communicator on this rank's host."""
        return len(self.membership.hosts[self.host])

    @at_once
    def tune(
        self, collectives: Sequence[str] | None = None, sizes: Sequence[int] | None = None, seconds: float = 10.0
    ) -> Tuning:
        """Measure every algorithm here.  This communicator, and those made of it, choose by that from now on.

        All ranks call it.  `collectives`: default all.  `sizes`: bytes, default 8 B to 16 MiB.  `seconds`: about how
        long it takes; each algorithm is called a few times at least.  Returns what was measured, the same on all ranks.
        `hocket tune` also keeps it for later jobs.  Raises ArgumentError if HOCKET_ALGORITHM is set.

        >>> import hocket
        >>> with hocket.local_world(2) as world:
        ...     tuned = world.run(lambda comm: comm.tune(["allreduce"], [8, 4096], seconds=0.1))[0]
        >>> [(p.collective, p.nbytes) for p in tuned.points]
        [('allreduce', 8), ('allreduce', 4096)]
        """
        from hocket.collectives.measuring import measure  # measuring is not needed before it is asked for

        names = [] if collectives is None else texts(collectives, "collectives")
        lengths = [] if sizes is None else wholes(sizes, "sizes")
        limit = valid_seconds(seconds, "seconds")
        tuning = measure.tune(self, names or measure.TUNED, lengths or measure.SIZES, limit)
        self.runner.retune(self.tuning + tuning)
        return tuning

    def explain(self, collective: str | None = None, nbytes: int | None = None, codec: str | None = None) -> str:
        """Say which transport leads to each rank and why the others do not, and which algorithm is used at which size.

        With codec="auto", a collective and nbytes of float32: also whether a codec pays there, by what calls with
        codec="auto" have measured.

        >>> import hocket
        >>> print(hocket.local_world(1).run(lambda comm: comm.explain("allreduce", 8))[0].splitlines()[0])
        communicator 'world': rank 0 of 1
        """
        return explain(self, collective, nbytes, codec)

    def stats(self) -> list[Stat]:
        """Count this rank's calls of each kind: their transport, their bytes, and the seconds that they took.

        The kinds that took longest come first.  A call counts when its turn comes.  Always on.  Lanes are included
        until they are closed.

        >>> import hocket, numpy as np
        >>> def twice(comm):
        ...     comm.allreduce(np.zeros(1000))
        ...     comm.allreduce(np.zeros(1000))
        ...     return [(s.collective, s.calls, s.bytes) for s in comm.stats() if s.collective == "allreduce"]
        >>> hocket.local_world(2).run(twice)[0]
        [('allreduce', 2, 16000)]
        """
        lanes = [row for name, lane in self._open_lanes().items() for row in stats(lane.membership, name)]
        return sorted(stats(self.membership) + lanes, key=lambda row: -row.seconds)

    # --- its end

    def close(self, timeout: float = 5.0, log_as: str | None = None) -> None:
        """Leave: wait until all members have come to it, at most `timeout` seconds, then free what it holds.

        Raises MismatchError, on all ranks, if their last calls differ.  To close the communicator of `hocket.init` is
        to end the job: then it also tells of calls on other communicators that only some ranks have made, and of recvs
        without a send.  It raises nothing if the communicator failed before, or if a rank is gone or does not come.
        A communicator that was made from another waits for its asynchronous collectives first, as long as calls may
        take; one that has had GPU arrays for its GPU, however long that is busy.

        `log_as`: for callers that may raise nothing.  What would be raised is logged, after this text, and the process
        ends with 1, unless it begins another job.
        """
        self.ending.close(timeout, log_as)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exc: object) -> None:
        if isinstance(exc[1], BaseException):
            self.reporter.give_up(exc[1])  # after which close raises nothing
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a communicator, or what holds one (a Mesh, a layer that is cut, an optimizer of hocket's), can be neither "
            "pickled nor deep-copied: keep its state_dict() or its arrays, and make it anew with a communicator"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: rank {self.rank} of {self.size}>"

    def __dir__(self) -> list[str]:
        """Names that a user may call, for completion; not those for other parts of the library."""
        kinds = [each for each in type(self).__mro__ if each is not object]
        names = [name for each in (*kinds, self) for name in vars(each)]
        own = [name for name in names if not name.startswith("_") and name not in PARTS]
        return [*own, *(name for name in super().__dir__() if name.startswith("__"))]
