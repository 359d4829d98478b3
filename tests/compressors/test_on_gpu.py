"""A Compressor's vectors on a GPU: stand-ins for its driver and for libraries of arrays, which count what waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu import ranks as gpu_ranks

COUNTED = """
from support.gpu import counted, methods
with hocket.init() as comm:
    comm.allreduce(counted.asarray(np.ones(1, np.float32)))
    methods.everything(comm, counted.asarray, counted.ndarray.get, methods.{which})
counted.drain()
assert left() == {{}}, left()
say(done=True)
"""
WHICH = ("FEW", pytest.param("METHODS", marks=pytest.mark.more))


@pytest.mark.parametrize("which", WHICH)
def test_arrays_of_a_namespace(which: str, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, COUNTED.format(which=which), tmp_path, seconds=60)


TORCH = """
import torch
from support.gpu import counted, counted_torch, methods, steps
from support.faulty import wait_for
counted_torch.install()
with hocket.init() as comm:
    comm.allreduce(counted_torch.place(np.ones(1, np.float32)))
    methods.everything(comm, counted_torch.place, counted_torch.read, methods.{which})
    steps.hooked(comm)
    steps.scheduled(comm)
    steps.given_back(comm)
counted.drain()
wait_for(lambda: left().keys() <= {{"streams"}}, 20, "all but torch's streams is given back: a thread closes, too,")
say(done=True)
"""


@pytest.mark.parametrize("which", ("OF_LIBRARIES", *WHICH[1:]))
def test_tensors_of_torch(which: str, built: Path, tmp_path: Path) -> None:
    """Methods; the averages of DDP's buckets and of a Scheduler.  In one job, as torch takes seconds to begin."""
    gpu_ranks.run(built, 2, TORCH.format(which=which), tmp_path, seconds=60)
