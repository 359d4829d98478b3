"""init and shutdown; who this rank is, and where."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import hocket
from hocket import Communicator
from hocket.errors import ArgumentError
from hocket.horovod import settings
from hocket.horovod.exceptions import OURS, NotInitializedError, ShutDownError, StallError, as_horovod
from hocket.horovod.meeting import WITHIN, Survivors, of_job
from hocket.horovod.settings import Settings
from hocket.horovod.stall import StallInspector
from hocket.horovod.timeline import Timeline
from hocket.training.agreeing import Errors, Perform, Submitter

ERRORS = Errors(OURS[hocket.MismatchError], ShutDownError, StallError, as_horovod)
END = "Horovod has been shut down by hvd.shutdown(), or its process set removed"
LEAVING = 5.0
"""Seconds that a rank which shuts down waits for the others to do so, too."""


class Job:
    """The job, from hvd.init() to hvd.shutdown().  `perform` makes what carries out a process set's tensors."""

    def __init__(self, comm: Communicator, perform: Callable[[], Perform], survivors: Survivors | None = None) -> None:
        self.settings: Settings = settings.read()
        self.comm, self.perform = comm, perform
        self.timeline = Timeline(comm.recorder() if comm.config.recorder else None)
        self.inspector = StallInspector(self.settings)
        self.members: dict[int, Submitter] = {}
        """By the number of their process set: those that this rank belongs to."""
        self.ranks: dict[int, list[int]] = {}
        """By the number of a process set: all its ranks."""
        self.registered: list[Any] = []
        """The objects that name process sets, which name none when the job is over."""
        self.next_set = 0
        places = comm.share([comm.host, comm.local_rank, comm.local_size], WITHIN)
        self.host: int
        self.local_rank: int
        self.local_size: int
        self.host, self.local_rank, self.local_size = places[comm.rank]
        across: list[int] = [host for host, local_rank, _ in places if local_rank == self.local_rank]
        self.cross_rank, self.cross_size = across.index(self.host), len(across)
        self.homogeneous = len({local_size for _, _, local_size in places}) == 1
        self.control = comm.dup()
        """For what all ranks do together, without names: process sets."""
        self.survivors = survivors or of_job(comm)
        """Knowledge that survivors of a loss need to meet again."""
        if self.settings.timeline not in ("", "DYNAMIC") and comm.rank == 0:
            self.timeline.start(self.settings.timeline, self.settings.timeline_cycles)

    def admit(self, number: int, ranks: Sequence[int]) -> None:
        """Make process set `number`.  All ranks of the job call it."""
        color = 0 if self.comm.rank in ranks else None
        made = self.control.split(color, self.comm.rank)
        self.ranks[number] = list(ranks)
        self.next_set = number + 1
        if made is None:
            return
        how = self.settings.fusion_threshold, self.settings.cycle_time / 1000, self.timeline, ERRORS
        member = self.members[number] = Submitter(made, self.perform(), *how)
        if member.negotiator is not None:
            of = "" if number == 0 else f"of the process set of ranks {list(ranks)} "
            self.inspector.watch(member.negotiator, of, made)

    def dismiss(self, number: int, seconds: float) -> None:
        """End this process set."""
        self.ranks.pop(number, None)
        member = self.members.pop(number, None)
        if member is not None:
            if member.negotiator is not None:
                self.inspector.forget(member.negotiator)
            member.stop(seconds, END)

    def close(self, polite: bool, keep: bool = False) -> None:
        """Close all communicators of this job; with `keep`, all but that of all ranks."""
        self.inspector.stop()
        for each in self.registered:
            each.process_set_id = None
        for number in sorted(self.members, reverse=True):
            member = self.members[number]
            self.dismiss(number, LEAVING if polite and member.error is None else 0.0)
        self.timeline.stop()
        with contextlib.suppress(hocket.Error):
            if not keep:
                self.comm.close()


_job: Job | None = None


def current() -> Job:
    """The job; raises NotInitializedError, a ValueError, before init and after shutdown."""
    if _job is None:
        raise NotInitializedError
    return _job


def begun() -> bool:
    """hvd.is_initialized()"""
    return _job is not None


def begin(comm: Any, perform: Callable[[], Perform]) -> bool:
    """Join the job, if this has not been done: all its ranks call it.  Was it done now?

    `comm`: None, by what the launcher said; a list of ranks of that job; an mpi4py communicator; or hocket's.
    """
    if _job is not None:
        return False
    resume(_world(comm), perform)
    return True


def resume(comm: Communicator, perform: Callable[[], Perform], survivors: Survivors | None = None) -> None:
    """A job of these ranks.  `survivors`: who they are, if they were ranks of another one before."""
    global _job
    made = Job(comm, perform, survivors)
    made.admit(0, range(comm.size))
    _job = made
    atexit.register(end)


def abandon(keep: bool = False) -> None:
    """The end of a job that has failed: nobody is waited for.  `keep`: its communicator stays, to be renewed."""
    global _job
    job, _job = _job, None
    if job is not None:
        atexit.unregister(end)
        job.close(polite=False, keep=keep)


def end() -> None:
    """hvd.shutdown(), and the end of the process."""
    global _job
    job, _job = _job, None
    if job is None:
        return
    atexit.unregister(end)
    error: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    dying = isinstance(error, BaseException) and not hasattr(sys, "ps1")  # a console goes on after it
    if dying:
        for member in job.members.values():
            member.give_up(error)
        job.comm.abort(error)
    job.close(polite=not dying)


def _world(comm: Any) -> Communicator:
    """The communicator of all ranks."""
    if comm is None or (isinstance(comm, (list, tuple)) and not comm):
        return hocket.init(make_default=False)
    if isinstance(comm, Communicator):
        return comm.dup()
    if isinstance(comm, Iterable) and not hasattr(comm, "Get_rank"):
        ranks = list(comm)
        whole = hocket.init(make_default=False)
        part = whole.subgroup(ranks)
        if part is None:
            raise ArgumentError(f"hvd.init(comm={ranks}): this is rank {whole.rank}, which is not one of these")
        return part
    if hasattr(comm, "Get_rank"):
        return hocket.from_mpi(comm)
    raise ArgumentError("hvd.init: comm must be None, a list of ranks, or an mpi4py communicator")
