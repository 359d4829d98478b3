"""Process sets: some of the ranks, with tensors and an order of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from hocket.errors import ArgumentError
from hocket.horovod import job
from hocket.horovod.exceptions import in_horovods_words
from hocket.training.agreeing import Submitter


class ProcessSet:
    """`ranks` of the job.  It can be used after hvd.init(process_sets=) or hvd.add_process_set() got it.

    Made of a list of ranks, or of an mpi4py communicator of them.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any) -> None:
        if hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
            return
        wrong = ArgumentError("a ProcessSet is made of a list of ranks, or of an mpi4py communicator")
        if not isinstance(ranks_or_comm, Iterable) or isinstance(ranks_or_comm, str):
            raise wrong
        ranks = list(ranks_or_comm)
        if any(not isinstance(rank, int) for rank in ranks):
            raise wrong
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """The number of ranks; None before it is registered."""
        return None if self.process_set_id is None else len(_ranks(self))

    def rank(self) -> int | None:
        """This rank's place in it; None before it is registered.  ValueError on the other ranks."""
        if self.process_set_id is None:
            return None
        ranks, here = _ranks(self), job.current().comm.rank
        if here not in ranks:
            raise ArgumentError(f"rank {here} is not part of {self}")
        return ranks.index(here)

    def included(self) -> bool | None:
        """Does this rank belong to it?"""
        return None if self.ranks is None else job.current().comm.rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


global_process_set = ProcessSet([])
"""All ranks."""
global_process_set.process_set_id = 0


def member(process_set: ProcessSet) -> Submitter:
    """This rank's part in it.  ArgumentError if it has none."""
    number, current = process_set.process_set_id, job.current()
    if number is None or number not in current.ranks:
        raise ArgumentError(f"{process_set} is not registered: hvd.init(process_sets=) or hvd.add_process_set()")
    found = current.members.get(number)
    if found is None:
        raise ArgumentError(f"rank {current.comm.rank} is not part of {process_set}")
    return found


def started(process_sets: Sequence[ProcessSet] | str | None) -> None:
    """After init: register the sets that it was given."""
    current = job.current()
    global_process_set.ranks = list(range(current.comm.size))
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ArgumentError(f"process_sets={process_sets!r} must be a list of ProcessSet, or 'dynamic'")
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        process_sets = None
    for each in process_sets or ():
        _register(each)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set.  All ranks of the job call it, in the same order.  ValueError if there is one of these ranks."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _register(made)
    return made


@in_horovods_words()
def remove_process_set(process_set: ProcessSet) -> bool:
    """End a set: all ranks of the job call it, and its tensors under way end first.  False if it is not registered."""
    number, current = process_set.process_set_id, job.current()
    if not number:
        return False
    process_set.process_set_id = None
    if number not in current.ranks:
        return False
    current.registered.remove(process_set)
    current.dismiss(number, current.comm.timeout)
    current.control.barrier()
    return True


@in_horovods_words()
def _register(made: ProcessSet) -> None:
    current = job.current()
    ranks = _of_comm(made) if made.ranks is None else made.ranks
    rows = current.control.share(ranks, "hvd.add_process_set()")
    other = next((r for r, row in enumerate(rows) if row != ranks), None)
    if other is not None:
        raise ArgumentError(f"all ranks add the same process sets in the same order: this rank adds {ranks}, "
                            f"rank {other} adds {rows[other]}")
    if not ranks or len(set(ranks)) < len(ranks) or not 0 <= min(ranks) <= max(ranks) < current.comm.size:
        raise ArgumentError(f"a process set of ranks {ranks} is not possible in a job of {current.comm.size} ranks")
    if ranks in current.ranks.values():
        raise ArgumentError(f"there is a process set of ranks {ranks} already")
    made.ranks, made.process_set_id = ranks, current.next_set
    current.registered.append(made)
    current.admit(current.next_set, ranks)


def _of_comm(made: ProcessSet) -> list[int]:
    """The job's ranks in an mpi4py communicator, of which each rank may have another one: they are told to all."""
    current = job.current()
    return sorted(made.mpi_comm.allgather(current.comm.rank))


def _ranks(process_set: ProcessSet) -> list[int]:
    found = job.current().ranks.get(process_set.process_set_id)  # type: ignore[arg-type]
    if found is None:
        raise ArgumentError(f"{process_set} does not exist any more")
    return found
