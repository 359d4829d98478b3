"""Arrays in GPU memory without CuPy or torch: what a rank of a test has on the stand-in driver, or on a real one."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from hocket.system.cuda import driver

STREAM = 0
"""Every array's stream; 0: the legacy one."""
sys.modules["gpu_arrays"] = sys.modules[__name__]  # where hocket looks for `empty`


class Device:
    """The `device` of CuPy's arrays."""

    def __init__(self, ordinal: int) -> None:
        self.id = ordinal


class GpuArray:
    """Memory of a GPU that lives as long as this does."""

    __module__ = "gpu_arrays"

    def __init__(self, shape: Any, dtype: Any, ordinal: int = 0, stream: int = STREAM) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype, self.device = np.dtype(dtype), Device(ordinal)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.gpu = driver.device(ordinal)
        self.address = self.gpu.alloc(max(1, self.nbytes))
        self.stream, self.read_only = stream, False
        self.strides: tuple[int, ...] | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        typestr = self.dtype.str if self.dtype.kind != "V" else f"<V{self.dtype.itemsize}"
        return {"shape": self.shape, "typestr": typestr, "data": (self.address, self.read_only), "version": 3,
                "strides": self.strides, "stream": self.stream or None}  # fmt: skip

    def set(self, host: Any) -> None:
        host = np.ascontiguousarray(host)
        self.gpu.copy(self.address, host.ctypes.data, self.nbytes, self.stream)
        self.gpu.synchronize(self.stream)

    def set_later(self, host: Any) -> None:
        """In stream order, and not waited for: nobody may free or change `host` before that."""
        self.gpu.copy(self.address, host.ctypes.data, self.nbytes, self.stream)

    def get(self) -> Any:
        """A copy in host memory, of what the stream has left here."""
        host = np.empty(self.shape, self.dtype)
        self.gpu.copy(host.ctypes.data, self.address, self.nbytes, self.stream)
        self.gpu.synchronize(self.stream)
        return host

    def part(self, start: int, stop: int) -> GpuArray:
        """Some of its elements, where they are."""
        made = GpuArray.__new__(GpuArray)
        vars(made).update(vars(self), shape=(stop - start,), nbytes=(stop - start) * self.dtype.itemsize, owner=self)
        made.address = self.address + start * self.dtype.itemsize
        return made

    def __del__(self) -> None:
        if hasattr(self, "owner"):
            return
        with contextlib.suppress(Exception):
            self.gpu.free(self.address)  # waits for all streams: this one may have ended


def put(host: Any, ordinal: int = 0) -> GpuArray:
    array = GpuArray(host.shape, host.dtype, ordinal)
    array.set(host)
    return array


def empty(shape: Any, dtype: Any) -> GpuArray:
    """Where hocket looks for a module's `empty`."""
    return GpuArray(shape, dtype)
