"""init, and what TensorFlow knows of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hocket import Communicator
from hocket.errors import ArgumentError
from hocket.horovod import job
from hocket.horovod.process_sets import ProcessSet, global_process_set, started


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the other ranks.  All of them call it; a second call does nothing.

    Rank and size come from the launcher: `hocket run`, torchrun, mpirun, srun, or RANK and WORLD_SIZE.
    `comm`: a list of that job's ranks, an mpi4py communicator, or hocket's.
    """
    if process_sets:
        raise ArgumentError(f"process_sets={process_sets!r}: for TensorFlow there is the one of all ranks only")
    if job.begin(comm, _Unnamed):
        started(None)


def cuda_built() -> bool:
    """Is there a CUDA device that TensorFlow can use?  Tensors go through host memory."""
    return bool(tf.config.list_physical_devices("GPU"))


def everybody(process_set: ProcessSet) -> Communicator:
    """The communicator of all ranks; ArgumentError for another process set."""
    if process_set is not global_process_set:
        raise ArgumentError(f"{process_set}: for TensorFlow there is hvd.global_process_set only")
    return job.current().comm


class _Unnamed:
    """In the place of what carries out tensors that were submitted by name: none are, here."""

    def __call__(self, *args: Any) -> list[Any]:
        raise ArgumentError("tensors of TensorFlow are not submitted by name")
