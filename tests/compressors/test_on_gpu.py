"""A Compressor's vectors on a GPU: stand-ins for its driver and for libraries of arrays, which count what waits."""

from __future__ import annotations

from pathlib import Path

from support.gpu import ranks as gpu_ranks

COUNTED = """
from support.gpu import counted, methods
with hocket.init() as comm:
    comm.allreduce(counted.asarray(np.ones(1, np.float32)))
    methods.everything(comm, counted.asarray, counted.ndarray.get)
counted.drain()
assert left() == {}, left()
say(done=True)
"""


def test_arrays_of_a_namespace(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, COUNTED, tmp_path, seconds=60)


TORCH = """
import torch
from support.gpu import counted, counted_torch, methods
with counted_torch.install(), hocket.init() as comm:
    comm.allreduce(counted_torch.place(np.ones(1, np.float32)))
    methods.everything(comm, counted_torch.place, counted_torch.read)
counted.drain()
assert left() == {}, left()
say(done=True)
"""


def test_tensors_of_torch(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, TORCH, tmp_path, seconds=60)
