"""Registered GPU memory: read in place, or copied, and said why."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu import ranks as gpu_ranks
from support.gpu.cases import BY_EVENTS, MORE

REGISTERED = """
from support.gpu import registered as gpu_registered
{before}
with alone() as comm:
    early = put(np.ones(200_000, np.float32))
    comm.register(early)
    gpu_registered.everything(comm)
    assert comm.allreduce(early).get()[0] == comm.size and "registered" not in comm.explain()
    del early
"""


@pytest.mark.parametrize("before", ["", pytest.param(BY_EVENTS, marks=pytest.mark.gpu)], ids=["words", "events"])
@pytest.mark.parametrize("size", [2, MORE])
def test_registered_memory_is_read_in_place(size: int, before: str, built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, size, REGISTERED.format(before=before), tmp_path, delay=500)


UNREGISTERED = """
with alone() as comm:
    x = [put(np.ones(200_000, np.float32)) for _ in range(67)]
    comm.allreduce(put(np.ones(3, np.float32)))
    unmapped = put(np.ones(200_000, np.float32))
    comm.register(unmapped)
    if comm.rank:
        gpu_ranks.refuse("cuIpcOpenMemHandle_v2", 1, 205)
    for _ in range(3):
        comm.allreduce(unmapped)
    assert unmapped.get()[-1] == comm.size ** 3
    gpu_ranks.knob("pool", 1)
    pooled = put(np.ones(200_000, np.float32))
    for each in (pooled, *x):
        comm.register(each)
    for each in (pooled, x[0], x[66]):
        for _ in range(2):
            comm.allreduce(each)
        assert each.get()[-1] == comm.size ** 2
    told = comm.explain()
    assert "registered, and copied all the same: 1 (its allocator makes memory that CUDA does not share" in told, told
    assert "registered, and copied all the same: 4 (64 allocations are registered already)" in told, told
    gpu_ranks.knob("pool", 0)
    comm = comm.dup()
    gpu_ranks.knob("ipc", 0)
    comm.register(x[0])
    assert comm.allreduce(x[0]).get()[0] == comm.size ** 3
    told = comm.explain()
    assert "registered, and copied all the same: 1 (no other rank's GPU is mapped here)" in told, told
    try:
        comm.register(np.ones(3))
    except hocket.ArgumentError as error:
        assert "on a GPU" in str(error)
    else:
        raise AssertionError
    comm.close()
    try:
        comm.register(x[0])
    except hocket.ArgumentError as error:
        assert "is closed" in str(error)
    else:
        raise AssertionError
    del x, pooled, unmapped, each, comm
"""


def test_memory_that_cannot_be_registered(built: Path, tmp_path: Path) -> None:
    gpu_ranks.run(built, 2, UNREGISTERED, tmp_path)
