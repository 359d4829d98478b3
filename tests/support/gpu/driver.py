"""The CUDA driver by ctypes, for tests: its prototypes are those of system/cuda/driver.h."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADER = (Path(__file__).parents[3] / "system" / "cuda" / "driver.h").read_text()
NUMBERS = {name: int(eval(value)) for name, value in re.findall(r"\b(CU\w+) = ([\d <]+)", HEADER)}


class Handle(ctypes.Structure):
    """The handle of memory or of an event, in another process."""

    _fields_ = [("reserved", ctypes.c_char * 64)]

    def __bytes__(self) -> bytes:
        return ctypes.string_at(ctypes.byref(self), 64)


TYPES: dict[str, Any] = {
    "CUdeviceptr": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "unsigned char": ctypes.c_ubyte,
    "cuuint32_t": ctypes.c_uint32,
    "CUdevice": ctypes.c_int,
    "CUresult": ctypes.c_int,
    "CUdevice_attribute": ctypes.c_int,
    "CUpointer_attribute": ctypes.c_int,
    "CUipcMemHandle": Handle,
    "CUipcEventHandle": Handle,
}


def prototypes() -> dict[str, list[Any]]:
    found = re.findall(r"X\((cu\w+), \(([^()]*)\)\)", HEADER.replace("\\\n", ""))
    split = {name: [" ".join(each.split()) for each in arguments.split(",")] for name, arguments in found}
    # A pointer or a handle
    return {name: [TYPES.get(each, ctypes.c_void_p) for each in arguments] for name, arguments in split.items()}


PROTOTYPES = prototypes()


class CudaError(Exception):
    """A call failed with this status."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call}: {status}")
        self.status = status


class Driver:
    """driver.cuMemFree_v2(...) calls it, and raises; driver.status("cuMemFree_v2", ...) returns its status."""

    def __init__(self, soname: str = "libcuda.so.1") -> None:
        self.library = ctypes.CDLL(soname)
        for name, arguments in PROTOTYPES.items():
            getattr(self.library, name).argtypes = arguments
        self.library.fake_get.restype = ctypes.c_long
        self.library.fake_set.argtypes = [ctypes.c_char_p, ctypes.c_long]
        self.library.fake_suballoc.restype = ctypes.c_uint64
        self.library.fake_suballoc.argtypes = [ctypes.c_size_t]
        self.library.fake_subfree.argtypes = [ctypes.c_uint64]
        self.library.fake_refuse.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]

    def status(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            status = self.status(name, *arguments)
            if status:
                raise CudaError(name, status)

        return call

    # ---- the stand-in's numbers

    def get(self, name: str) -> int:
        value = int(self.library.fake_get(name.encode()))
        assert value != -1, f"no number {name}"
        return value

    def set(self, **values: int) -> None:
        for name, value in values.items():
            assert self.library.fake_set(name.encode(), value) == 0, f"no number {name}"

    def refuse(self, function: str, nth: int, status: int) -> None:
        self.library.fake_refuse(function.encode(), nth, status)

    # ---- short forms

    def out(self, kind: Any, name: str, *arguments: Any) -> Any:
        """Call a function, and return what it writes through its first argument."""
        value = kind()
        getattr(self, name)(ctypes.byref(value), *arguments)
        return getattr(value, "value", value)

    def begin(self, device: int = 0) -> int:
        """Makes the device's context the thread's."""
        self.cuInit(0)
        context: int = self.out(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device)
        self.cuCtxPushCurrent_v2(context)
        return context

    def alloc(self, size: int) -> int:
        return int(self.out(ctypes.c_uint64, "cuMemAlloc_v2", size))

    def stream(self, flags: int = 0) -> int:
        return int(self.out(ctypes.c_void_p, "cuStreamCreate", flags))

    def event(self, flags: int = 2) -> int:
        return int(self.out(ctypes.c_void_p, "cuEventCreate", flags))

    def attribute(self, which: str, at: int, kind: Any = ctypes.c_uint64) -> int:
        name = f"CU_POINTER_ATTRIBUTE_{which}"
        return int(self.out(kind, "cuPointerGetAttribute", NUMBERS[name], at))

    def write(self, to: int, data: bytes, stream: int = 0) -> None:
        source = ctypes.create_string_buffer(data, len(data))
        self.cuMemcpyAsync(to, ctypes.addressof(source), len(data), stream)
        self.cuStreamSynchronize(stream)

    def read(self, at: int, size: int, stream: int = 0) -> bytes:
        into = ctypes.create_string_buffer(size)
        self.cuMemcpyAsync(ctypes.addressof(into), at, size, stream)
        self.cuStreamSynchronize(stream)
        return into.raw
