"""A GPU for the check: hocket's own Device, and more of the driver by ctypes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from hocket.errors import Error
from hocket.kernels.gpu import launch
from hocket.kernels.gpu.catalogue import Kernel, Module
from hocket.kernels.gpu.source import module_source
from hocket.system.cuda import driver, nvrtc

BUSY = 600
COMPUTE_MODE, L2_BYTES, IPC_EVENTS, MEMOPS, MPS = 20, 38, 125, 123, 133
LEGACY_IPC, RANGE_START, RANGE_SIZE = 10, 11, 12
DISABLE_TIMING, INTERPROCESS = 2, 4

_AT, _HANDLE = ctypes.c_uint64, ctypes.c_void_p
_INT, _FLAGS = ctypes.c_int, ctypes.c_uint


_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuDriverGetVersion": (_HANDLE,),
    "cuDeviceGetAttribute": (_HANDLE, _INT, _INT),
    "cuPointerGetAttribute": (_HANDLE, _INT, _AT),
    "cuGetErrorString": (_INT, _HANDLE),
    "cuEventCreate": (_HANDLE, _FLAGS),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuStreamWaitEvent": (_HANDLE, _HANDLE, _FLAGS),
    "cuStreamQuery": (_HANDLE,),
    "cuLaunchKernel": (_HANDLE, *[_FLAGS] * 7, _HANDLE, _HANDLE, _HANDLE),
}


class Gpu:
    """GPU `ordinal`.  Every call enters its context and raises hocket.Error with the driver's words."""

    def __init__(self, ordinal: int = 0) -> None:
        self.device = driver.device(ordinal)
        self.multiprocessors = self.device.multiprocessors
        self.images: dict[Module, bytes] = {}
        """Compiled already."""
        self._driver = ctypes.CDLL(driver.LIBRARY)
        for name, arguments in _PROTOTYPES.items():
            if hasattr(self._driver, name):
                getattr(self._driver, name).argtypes = arguments

    def status(self, name: str, *arguments: Any) -> int:
        with self.device:
            return int(getattr(self._driver, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        code = self.status(name, *arguments)
        if code:
            raise Error(f"{name}: {self.words(code)}")

    def words(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._driver.cuGetErrorString(code, ctypes.byref(text))
        return f"{(text.value or b'unknown').decode()} (CUDA error {code})"

    def out(self, kind: Any, name: str, *arguments: Any) -> int:
        """Call a function, and return what it writes through its first argument."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return int(value.value or 0)

    def attribute(self, which: int) -> int:
        return self.out(_INT, "cuDeviceGetAttribute", which, self.device.ordinal)

    def pointer(self, which: int, address: int) -> int:
        return self.out(_AT, "cuPointerGetAttribute", which, address)

    # ---- events

    def event(self) -> int:
        """An event of the kind that other processes may open."""
        return self.out(_HANDLE, "cuEventCreate", DISABLE_TIMING | INTERPROCESS)

    def record(self, event: int, stream: int) -> None:
        self.call("cuEventRecord", event, stream)

    def await_event(self, stream: int, event: int) -> None:
        self.call("cuStreamWaitEvent", stream, event, 0)

    def drained(self, stream: int, seconds: float) -> str:
        """Poll `stream`, as it may wait for ever: "" if it is done, else why it failed, or that it still waits."""
        deadline = time.monotonic() + seconds
        while (code := self.status("cuStreamQuery", stream)) == BUSY:
            if time.monotonic() > deadline:
                return f"still waits after {seconds:g} s"
        return self.words(code) if code else ""

    # ---- kernels

    def function(self, kernel: Kernel) -> int:
        major, minor = self.device.capability

        def load() -> bytes:
            if kernel.module not in self.images:
                text, options = module_source(kernel.module)
                self.images[kernel.module] = nvrtc.compile(text, options, 10 * major + minor, kernel.name)[0]
            return self.images[kernel.module]

        return self.device.function(kernel.module, kernel.name, load)

    def prepared(self, kernel: Kernel, grid: int, *values: Any) -> Launch:
        return Launch(self, kernel, grid, values)

    def launch(self, kernel: Kernel, grid: int, *values: Any, stream: int = 0) -> None:
        self.prepared(kernel, grid, *values)(stream)

    # ---- memory

    def alloc(self, nbytes: int, fill: Any = None) -> int:
        """Not given back before the process ends.  Filled with the bytes of `fill`, an array, over and over."""
        address = self.device.alloc(nbytes)
        if fill is not None:
            done = min(nbytes, fill.nbytes)
            self.device.copy(address, fill.ctypes.data, done, 0)
            while done < nbytes:
                some = min(done, nbytes - done)
                self.device.copy(address + done, address, some, 0)
                done += some
            self.device.synchronize(0)
        return address

    def seconds(self, calls: Sequence[Any], rounds: int = 5) -> float:
        """The median time of one of `calls`, which are issued in turn to stream 0."""
        times = []
        for turn in range(rounds + 1):
            self.device.synchronize(0)
            start = time.perf_counter()
            for call in calls:
                call()
            self.device.synchronize(0)
            if turn:  # the first warms up
                times.append((time.perf_counter() - start) / len(calls))
        return median(times)


class Launch:
    """A kernel with its arguments, to be launched often."""

    def __init__(self, gpu: Gpu, kernel: Kernel, grid: int, values: Sequence[Any]) -> None:
        self.gpu, self.grid, self.function = gpu, grid, gpu.function(kernel)
        self.parameters, self.kept = launch.arguments(kernel, *values)

    def __call__(self, stream: int = 0) -> None:
        at = ctypes.cast(self.parameters, ctypes.c_void_p)
        self.gpu.call("cuLaunchKernel", self.function, self.grid, 1, 1, launch.BLOCK, 1, 1, 0, stream, at, None)
