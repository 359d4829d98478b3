"""init, and what TensorFlow knows of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hocket import Communicator
from hocket.errors import ArgumentError
from hocket.horovod import job
from hocket.horovod.process_sets import ProcessSet, member, started


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the other ranks.  All of them call it; a second call does nothing.

    Rank and size come from the launcher: `hocket run`, torchrun, mpirun, srun, or RANK and WORLD_SIZE.
    `comm`: a list of that job's ranks, an mpi4py communicator, or hocket's.
    """
    if job.begin(comm, _Unnamed):
        started(process_sets)


def cuda_built() -> bool:
    """Is there a CUDA device that TensorFlow can use?  Tensors go through host memory."""
    return bool(tf.config.list_physical_devices("GPU"))


def of_set(process_set: ProcessSet) -> Communicator:
    """The communicator of a process set's ranks.  ArgumentError: it is not registered, or this rank is none of them."""
    return member(process_set).comm


def place(process_set: ProcessSet, root_rank: int) -> int:
    """The place of a rank of the job in a process set.  ArgumentError: it is none of them."""
    member(process_set)
    ranks = process_set.ranks or []
    if root_rank not in ranks:
        raise ArgumentError(f"root_rank={root_rank} is not one of the ranks of {process_set}")
    return ranks.index(root_rank)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks of a process set, as a tensor."""
    return tf.constant(len(_ranks(process_set_id)), tf.int32)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is of the process set, else 0, as a tensor."""
    return tf.constant(int(job.current().comm.rank in _ranks(process_set_id)), tf.int32)


def rank_op(name: str | None = None) -> Any:
    """This rank's number, as a tensor."""
    return tf.constant(job.current().comm.rank, tf.int32)


def local_rank_op(name: str | None = None) -> Any:
    """This rank's place among those of its host, as a tensor."""
    return tf.constant(job.current().local_rank, tf.int32)


def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this host, as a tensor."""
    return tf.constant(job.current().local_size, tf.int32)


def _ranks(number: int) -> list[int]:
    found = job.current().ranks.get(number)
    if found is None:
        raise ArgumentError(f"there is no process set {number}")
    return found


class _Unnamed:
    """In the place of what carries out tensors that were submitted by name: none are, here."""

    def __call__(self, *args: Any) -> list[Any]:
        raise ArgumentError("tensors of TensorFlow are not submitted by name")
