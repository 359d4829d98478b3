"""GPU arrays go through host memory.  A stand-in plays the card; conformance/gpu_check/ is for hardware."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np

import hocket


class DeviceArray:
    """A stand-in for CuPy's ndarray, as far as staging uses it; its memory cannot be reached but by get and set."""

    def __init__(self, data: Any) -> None:
        self._data = np.array(data)
        self.shape, self.dtype = self._data.shape, self._data.dtype
        self.__cuda_array_interface__ = {"data": (0, False), "shape": self.shape, "typestr": self.dtype.str}

    def get(self) -> Any:
        return self._data.copy()

    def set(self, host: Any) -> None:
        self._data[...] = host


def empty(shape: tuple[int, ...], dtype: Any) -> DeviceArray:
    return DeviceArray(np.zeros(shape, dtype))


DeviceArray.__module__ = "stand_in_for_cupy"  # where staging looks for `empty`
sys.modules[DeviceArray.__module__] = types.SimpleNamespace(empty=empty)  # type: ignore[assignment]


def test_device_arrays_come_back_as_device_arrays() -> None:
    def rank(comm: hocket.Communicator) -> list[Any]:
        x = DeviceArray(np.arange(4.0) + comm.rank)
        same = comm.allreduce(x) is x
        rows = comm.allgather(DeviceArray([[comm.rank, 1]]))
        into = DeviceArray(np.zeros(4))
        comm.allreduce(x, "max", out=into)
        work = comm.broadcast(x, root=1, async_op=True)
        work.wait()
        if comm.rank == 0:
            comm.send(x, 1, tag=3)
        else:
            comm.recv(into, 0, tag=3)
        return [same, x.get().tolist(), type(rows), rows.get().tolist(), into.get().tolist()]

    for same, x, kind, rows, into in hocket.local_world(2).run(rank):
        assert same and kind is DeviceArray
        assert x == into == [1, 3, 5, 7]
        assert rows == [[0, 1], [1, 1]]
