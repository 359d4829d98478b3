"""Arrays that offer their memory by DLPack alone."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""DLPack's, by NumPy's kinds."""


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Old(ctypes.Structure):
    """The structure before version 1."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


class OnGpu:
    """A GpuArray that offers DLPack alone.  `streams`: those for which it was asked.

    What may be odd about it: `version`, `read_only`, `lanes`, `kind` of device, `strides`.
    """

    def __init__(self, array: Any, version: int = 1, read_only: bool = False, lanes: int = 1, kind: int = 2,
                 strides: tuple[int, ...] | None = None) -> None:  # fmt: skip
        self._array, self._version, self._read_only, self._lanes, self._kind = array, version, read_only, lanes, kind
        self._strides = strides
        self._kept: list[Any] = []
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, self._array.device.id

    def __dlpack__(self, *, stream: Any = None, **more: Any) -> Any:
        if more and self._version == 0:
            raise TypeError("no max_version is known here")
        self.streams.append(stream)
        a, n = self._array, len(self._array.shape)
        shape = (ctypes.c_int64 * n)(*a.shape)
        strides = (ctypes.c_int64 * n)(*self._strides) if self._strides else None
        tensor = Tensor(
            a.address - 8, self._kind, a.device.id, n, CODES[a.dtype.kind], 8 * a.dtype.itemsize, self._lanes, shape,
            strides, 8,
        )  # fmt: skip
        made = Versioned(self._version, 0, None, None, int(self._read_only), tensor) if self._version else Old(tensor)
        self._kept += [made, shape, strides]
        name = b"dltensor_versioned" if self._version else b"dltensor"
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(made), name, None)


class InMemory:
    """A NumPy array that offers DLPack alone; `old`: as before version 1, which knows no word for read-only."""

    def __init__(self, array: np.ndarray[Any, Any], old: bool = False) -> None:
        self._array, self._old = array, old

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **how: Any) -> Any:
        if self._old:
            how.pop("max_version", None)
        return self._array.__dlpack__(**how)
