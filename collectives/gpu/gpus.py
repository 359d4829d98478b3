"""What a communicator knows of its members' GPUs, and how it comes to its queue of calls on their arrays."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hocket.collectives.arrays.buffers import Buffer
from hocket.collectives.engine.queue import Queue
from hocket.errors import ArgumentError

if TYPE_CHECKING:
    from hocket.collectives.communicator.members import Members
    from hocket.collectives.communicator.runner import Runner

ON_GPU = "the first call on GPU arrays"


class Gpus:
    """The same on all members, but for what says "this rank"."""

    def __init__(self) -> None:
        self.why_staged: str | None = None
        """Why arrays go through host memory whole; "": they do not; None: there were none yet."""
        self.all_mapped = True
        """Can every member map every other's GPU memory?"""
        self.why_events = ""
        """Why marks are events, and not words that streams wait for; ""."""
        self.why_apart = ""
        """Why no kernel carries out a call alone, meeting those of the other ranks; ""."""
        self.why_pinned: dict[int, str] = {}
        """The ranks that this rank reaches through pinned memory, and why."""
        self.unregistered: dict[str, int] = {}
        """Why memory that was to be registered by this rank is not: so many arrays each."""
        self._ordinal = -1
        self._first = threading.Lock()
        """Held by the first call on GPU arrays: threads may make several at once, and the steps are those of one."""
        self._to_register: list[Buffer] = []

    def queue(self, runner: Runner, gpu: int, timeout: float | None) -> Queue | None:
        """The queue for arrays on this GPU; None if they must go through host memory."""
        if self.why_staged is None:
            with self._first:
                if self.why_staged is None:
                    self._begin(runner, gpu, timeout)
        if self.why_staged:
            return None
        if gpu != self._ordinal:
            raise ArgumentError(
                f"this communicator works on GPU {self._ordinal}; the array is on GPU {gpu}: copy it there, "
                "or use another communicator (comm.split)"
            )
        return runner.members.queues["gpu", None]

    def _begin(self, runner: Runner, gpu: int, timeout: float | None) -> None:
        members = runner.members
        without = [r for r, member in enumerate(members.world_ranks) if not members.world.gpus[member]]
        if without:
            self.why_staged = f"rank {without[0]} has no GPU, or says so (HOCKET_GPU)"
            return
        try:
            self._make_queue(runner, gpu, functools.partial(runner.share, within=ON_GPU, timeout=timeout))
        except BaseException as error:  # the others would wait for us in the next step
            runner.reporter.give_up(error)
            raise

    def _make_queue(self, runner: Runner, gpu: int, share: Callable[[Any], list[Any]]) -> None:
        from hocket.collectives.gpu import accelerated  # only who has arrays on a GPU needs it

        members, reporter = runner.members, runner.reporter
        accelerator, found = accelerated.build(members, gpu, share)
        if accelerator is not None:
            try:
                made = members.make_queue("gpu", None, reporter, accelerator)
                made.accept(share(made.offer()))
                accelerator.complete()
            except BaseException:
                accelerator.abort()
                raise
            members.queues["gpu", None] = made
            accelerator.is_driven = lambda: made.engine.driven
            if reporter.halted:  # meanwhile, and that queue was not there to be told
                made.engine.abort()
                accelerator.abort()
            made.engine.count_with(members.main.engine)
            self.all_mapped = not any(map(any, found.mapped))
            self.why_pinned = {r: why for r, why in enumerate(found.mapped[members.rank]) if why}
            self._ordinal = gpu
            for buffer in self._to_register:
                self._register(accelerator, buffer)
            self._to_register.clear()
        self.why_events, self.why_apart = found.why_events, found.why_apart
        self.why_staged = found.why_staged  # the last: other threads look at it

    def register(self, members: Members, buffer: Buffer) -> None:
        """Tell the queue of GPU arrays, now or when there is one, that this array's memory stays."""
        if buffer.device < 0:
            raise ArgumentError("register takes an array on a GPU; for others nothing is to be gained")
        queue = members.queues.get(("gpu", None))
        if queue is None:
            self._to_register.append(buffer)
        else:
            self._register(queue.accelerator, buffer)

    def _register(self, accelerator: Any, buffer: Buffer) -> None:
        why = accelerator.register(buffer)
        if why:
            self.unregistered[why] = self.unregistered.get(why, 0) + 1

    def close(self) -> None:
        """Let go of arrays that were to be registered."""
        self._to_register.clear()
