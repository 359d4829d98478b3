"""A communicator's knowledge of its members' GPUs, and how it comes to its queue of calls on their arrays."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from hocket.arguments import human
from hocket.collectives.arrays.buffers import Buffer
from hocket.collectives.arrays.streams import current_stream
from hocket.collectives.engine.queue import Queue
from hocket.collectives.failures.reporting import Reporter
from hocket.collectives.members.members import Members
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.collectives.gpu.context import GpuContext
    from hocket.collectives.gpu.queue import GpuQueue
    from hocket.collectives.gpu.rooms import Rooms

ON_GPU = "the first call on GPU arrays"


class Gpus:
    """The attributes are the same on all members, except those that say "this rank"."""

    def __init__(self, members: Members, reporter: Reporter) -> None:
        self._members, self._reporter = members, reporter
        self.why_staged: str | None = None
        """Why arrays go through host memory whole; "": they do not; None: there were none yet."""
        self.all_mapped = True
        """Can every member map every other's GPU memory?"""
        self.mapped: list[list[str]] = []
        """[a][b]: why the memories of a's GPU and b's cannot be mapped by each other, "" if they can."""
        self.why_events = ""
        """Why streams wait for each other by events, and not by words in memory; "": by words."""
        self.why_apart = ""
        """Why no kernels of all ranks meet (meeting.pyx); "": they do."""
        self.why_pinned: dict[int, str] = {}
        """The ranks that this rank reaches through pinned memory, and why."""
        self.unregistered: dict[str, int] = {}
        """Reasons why arrays of this rank could not be registered, and for how many each."""
        self._ordinal = -1
        self._first = threading.Lock()
        """Held while the queue is made: several threads may make the first call at once."""
        self._to_register: list[Buffer] = []

    def queue(self, share: Callable[..., list[Any]], buffer: Buffer, timeout: float | None) -> Queue | None:
        """The queue for arrays on this one's GPU; None if they must go through host memory.  `share`: the runner's."""
        gpu = buffer.device
        if self.why_staged is None:
            with self._first:
                if self.why_staged is None:
                    self._begin(share, buffer, timeout)
        if self.why_staged:
            return None
        if gpu != self._ordinal:
            raise ArgumentError(
                f"this communicator works on GPU {self._ordinal}; the array is on GPU {gpu}: copy it there, "
                "or use another communicator (comm.split)"
            )
        return self._members.queues["gpu", None]

    def _begin(self, share: Callable[..., list[Any]], buffer: Buffer, timeout: float | None) -> None:
        members, gpu = self._members, buffer.device
        without = [r for r, member in enumerate(members.world_ranks) if not members.world.gpus[member]]
        if without:
            self.why_staged = f"rank {without[0]} has no GPU, or HOCKET_GPU says so"
            return
        from hocket.collectives.gpu.stream_ops import refuse_capture
        from hocket.system.cuda import driver

        refuse_capture(driver.device(gpu), current_stream(buffer.array, gpu))
        try:
            self._make_queue(gpu, functools.partial(share, within=ON_GPU, timeout=timeout))
        except BaseException as error:  # the other ranks would wait for this one in the next step
            self._reporter.give_up(error)
            raise

    def _make_queue(self, gpu: int, share: Callable[[Any], list[Any]]) -> None:
        from hocket.collectives.gpu import context  # only a rank with arrays on a GPU needs these
        from hocket.collectives.gpu.queue import GpuQueue

        members, reporter = self._members, self._reporter
        mine, trial = context.build(members, gpu, share)
        if mine is not None:
            try:
                queue = members.make_queue("gpu", None, reporter, functools.partial(GpuQueue, mine))
                queue.accept(share(queue.offer()))
                mine.complete()
            except BaseException:
                mine.abort()
                raise
            members.queues["gpu", None] = queue
            if reporter.halted:  # it failed meanwhile, before this queue could be told
                queue.engine.abort()
                queue.abort()
            queue.engine.count_with(members.main.engine)
            self.all_mapped, self.mapped = not any(map(any, trial.mapped)), trial.mapped
            self.why_pinned = {r: why for r, why in enumerate(trial.mapped[members.rank]) if why}
            self._ordinal = gpu
            for buffer in self._to_register:
                self._register(mine, buffer)
            self._to_register.clear()
        self.why_events, self.why_apart = trial.why_events, trial.why_apart
        self.why_staged = trial.why_staged  # set last: other threads look at it

    def rooms(self, buffer: Buffer, peers: Sequence[int]) -> Rooms | None:
        """Where a message of this array to one of these ranks, or from one, lies meanwhile; None: in host memory.

        The same on both ranks, once the first call on GPU arrays has shown what they can map.  ArgumentError: it is so
        for some of these ranks only.
        """
        if self.why_staged != "" or not buffer.foreign:
            return None
        row = self.mapped[self._members.rank]
        ways = {not row[peer] for peer in peers}
        if len(ways) > 1:
            raise ArgumentError(
                "a recv into GPU memory from any rank needs ranks that all reach this GPU, or none: name the source"
            )
        if not ways.pop():
            return None
        if buffer.device != self._ordinal:
            raise ArgumentError(
                f"this communicator works on GPU {self._ordinal}; the array is on GPU {buffer.device}: copy it there, "
                "or use another communicator (comm.split)"
            )
        return cast("GpuQueue", self._members.queues["gpu", None]).context.rooms

    @property
    def nccl(self) -> str:
        """The library behind algorithm="nccl", in words; "": no call on GPU arrays was made yet."""
        if self.why_staged is None:
            return ""
        queue = cast("GpuQueue | None", self._members.queues.get(("gpu", None)))
        if queue is None:
            return f"no: GPU arrays go through host memory: {self.why_staged}"
        return "not yet: its first call tries it" if queue.context.nccl is None else queue.context.nccl.about

    @property
    def all_rooms(self) -> Rooms | None:
        """Where all such messages lie."""
        queue = cast("GpuQueue | None", self._members.queues.get(("gpu", None)))
        return None if queue is None else queue.context.rooms

    def register(self, buffer: Buffer) -> None:
        """Register this array with the queue of GPU arrays, now or when there is one."""
        if buffer.device < 0:
            raise ArgumentError("register takes an array on a GPU; other arrays need no registration")
        queue = cast("GpuQueue | None", self._members.queues.get(("gpu", None)))
        if queue is None:
            self._to_register.append(buffer)
        else:
            self._register(queue.context, buffer)

    def _register(self, mine: GpuContext, buffer: Buffer) -> None:
        why = mine.register(buffer)
        if why:
            self.unregistered[why] = self.unregistered.get(why, 0) + 1

    def close(self) -> None:
        """Let go of arrays that were to be registered."""
        self._to_register.clear()

    def words(self, size: int) -> list[str]:
        """Tell how GPU arrays go to the other members, in words; [] if there were none yet.  `size`: of the
        communicator."""
        if self.why_staged is None:
            return []
        if self.why_staged:
            return [f"GPU arrays: through host memory, whole: {self.why_staged}"]
        from hocket.collectives.gpu.meeting import LARGEST

        how = f"hosts wait for events, not streams for words: {self.why_events}" if self.why_events else ""
        direct = f"from GPU to GPU (CUDA IPC; {how or 'streams wait for words'})"
        to_none = len(self.why_pinned) == size - 1 > 0
        together = f"up to {human(LARGEST)} of each rank's x in one kernel of each, which meet by flags"
        return [
            f"GPU arrays: {'in pieces through pinned host memory' if to_none else direct}",
            f"  no kernels that meet: {self.why_apart}" if self.why_apart else f"  {together}",
            *(f"  registered, and copied all the same: {n} ({why})" for why, n in self.unregistered.items()),
            *(f"  rank {peer}: through pinned host memory: {why}" for peer, why in self.why_pinned.items()),
        ]
