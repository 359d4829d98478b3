"""init, and what torch knows of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hocket.horovod import job
from hocket.horovod.process_sets import ProcessSet, started
from hocket.horovod.torch.perform import Performer


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the other ranks.  All of them call it; a second call does nothing.

    Rank and size come from the launcher: `hocket run`, torchrun, mpirun, srun, or RANK and WORLD_SIZE.
    `comm`: a list of that job's ranks, an mpi4py communicator, or hocket's.  `process_sets`: those to register; sets
    can be added and removed later, whether "dynamic" is said or not.
    """
    if job.begin(comm, Performer):
        started(process_sets)


def cuda_built() -> bool:
    """Is there a CUDA device that hocket and torch can use?"""
    return torch.cuda.is_available()
