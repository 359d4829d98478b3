"""Training's vectors on a GPU: stand-ins for its driver and for libraries of arrays, which count what waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu import ranks as gpu_ranks

ALL = pytest.param(1, marks=pytest.mark.more)
CUPY = """
from support.gpu import counted, loops
loops.STRIDE = {stride}
with hocket.init() as comm:
    comm.allreduce(counted.asarray(np.ones(1, np.float32)))
    loops.everything(comm, counted.asarray, counted.ndarray.get)
    loops.full(comm, counted.asarray, counted.ndarray.get)
    loops.two_streams(comm, counted.asarray, counted.ndarray.get)
counted.drain()
assert left() == {{}}, left()
say(done=True)
"""


@pytest.mark.parametrize("stride", (3, ALL))
def test_arrays_of_a_namespace(stride: int, built: Path, tmp_path: Path) -> None:
    """Each third case, or all; memory that is full, captures, and two streams."""
    gpu_ranks.run(built, 2, CUPY.format(stride=stride), tmp_path, seconds=60)


TORCH = """
import torch
from support.gpu import counted, counted_torch, loops
from support.faulty import wait_for
loops.STRIDE = {stride}
counted_torch.install()
with hocket.init() as comm:
    comm.allreduce(counted_torch.place(np.ones(1, np.float32)))
    loops.everything(comm, counted_torch.place, counted_torch.read)
counted.drain()
wait_for(lambda: left().keys() <= {{"streams"}}, 20, "all but torch's streams is given back: a thread closes, too,")
say(done=True)
"""


@pytest.mark.parametrize("stride", (7, ALL))
def test_tensors_of_torch(stride: int, built: Path, tmp_path: Path) -> None:
    """The first case of each, or all."""
    gpu_ranks.run(built, 2, TORCH.format(stride=stride), tmp_path, seconds=60)
