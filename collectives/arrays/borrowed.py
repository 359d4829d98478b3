"""Memory of a GPU as arrays of the caller's own kind: CuPy's, torch's, or anybody's by `__cuda_array_interface__`.

No GPU library is imported here: the caller's array brings its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy

from hocket.collectives.arrays.places import gpu_of
from hocket.collectives.arrays.streams import current_stream, library_stream
from hocket.errors import ArgumentError, MemoryError, TransportError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Gpu:
    """CuPy's arrays have this as `device`."""

    id: int


@dataclass(frozen=True)
class Lent:
    """Memory that somebody else owns, to be read in the order of `stream`."""

    address: int
    shape: tuple[int, ...]
    dtype: Any
    device: Gpu
    stream: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, True), "version": 3,
            "strides": None, "stream": self.stream,
        }  # fmt: skip


class BytesForTorch:
    """Memory as writable bytes: torch refuses read-only memory, and the interface has no word for bfloat16."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 2, "strides": None,
        }  # fmt: skip


def lend(array: Any, address: int, nbytes: int, gpu: int, stream: int) -> Any:
    """`nbytes` bytes at `address`, as a vector of the kind and dtype of `array`, on this GPU.

    Nothing is copied, except by torch if the memory is another GPU's: its arrays must all be on one.
    """
    if hasattr(array, "data_ptr"):
        torch = sys.modules["torch"]
        return torch.as_tensor(BytesForTorch(address, nbytes), device=f"cuda:{gpu}").view(array.dtype)
    dtype = numpy.dtype(array.dtype)
    shape = (nbytes // dtype.itemsize,)
    cupy = cupy_of(array)
    if cupy is None:
        return Lent(address, shape, dtype, Gpu(gpu), stream)
    memory = cupy.cuda.UnownedMemory(address, nbytes, None, gpu)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def current(array: Any, gpu: int, stream: int) -> AbstractContextManager[Any]:
    """Inside the block, the library of `array` works on this GPU and stream in this thread.

    CuPy and torch reuse freed memory only in the order of the stream that it was made on.  So an array that is made
    here may be dropped as soon as its use has been issued.
    """
    if hasattr(array, "data_ptr"):
        torch = sys.modules["torch"]
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=gpu))  # type: ignore[no-any-return]
    cupy = cupy_of(array)
    return contextlib.nullcontext() if cupy is None else _current_in(cupy, gpu, stream)


class Aside:
    """A stream of the GPU of `array` for a thread that works beside the caller's; in host memory nothing is done.

    `behind()`: what it is given from now on waits for what the caller's stream has now.  `work()`: inside the block the
    library of the arrays works in it, in this thread.  `join()`: the caller's stream waits for what it has been given;
    `settle()`: the host does.
    """

    def __init__(self, array: Any) -> None:
        self._array, self._gpu = array, gpu_of(array)
        self._device: Any = None
        if self._gpu >= 0:
            from hocket.system.cuda import driver

            self._device = driver.device(self._gpu)
            self._stream = self._device.take_stream()
            weakref.finalize(self, self._device.give_stream, self._stream)

    def behind(self) -> None:
        if self._device is not None:
            self._device.follow(self._stream, current_stream(self._array, self._gpu))

    def work(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._device is None else current(self._array, self._gpu, self._stream)

    def settle(self) -> None:
        """Wait until it has done what it was given."""
        if self._device is not None:
            self._device.synchronize(self._stream)

    def join(self) -> None:
        if self._device is not None:
            self._device.follow(current_stream(self._array, self._gpu), self._stream)


class InOrder:
    """The order of calls that use what others have left on a GPU, in whatever streams they are.  No host waits.

    `with order(array):` a call, in the current stream of the array's library.  It waits, on the GPU, for the last one,
    if that was in another stream; and what that stream of torch's or CuPy's is given from now on waits for this call,
    as memory that it gives back may be taken there.  `mark(array)`: what this stream has now counts as a call;
    `follow(array)`: it waits for the last one.  In host memory nothing is done.  ArgumentError where the stream is
    being captured into a CUDA graph, or where `on_stream` has another than the library.
    """

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.Lock()
        self._device: Any = None
        self._event = self._stream = 0
        self._lasting: Any = None
        """The stream of the last call, which this keeps."""

    @contextlib.contextmanager
    def __call__(self, array: Any) -> Iterator[None]:
        self.follow(array)
        before, stream = self._lasting, self._stream
        try:
            yield
        finally:
            self.mark(array)
            if before is not None and stream != self._stream:
                self._device.wait_event(stream, self._event)

    def follow(self, array: Any) -> None:
        if (gpu := gpu_of(array)) >= 0:
            with self._lock:
                self._follow(array, gpu)

    def mark(self, array: Any) -> None:
        if (gpu := gpu_of(array)) < 0:
            return
        from hocket.system.cuda import driver

        with self._lock:
            stream = self._follow(array, gpu)
            if self._device is not driver.device(gpu):
                self._device = driver.device(gpu)
                self._event = self._device.event()
                weakref.finalize(self, self._device.end_event, self._event).atexit = False
            self._device.record(self._event, stream)
            self._stream, self._lasting = stream, _lasting(array, gpu)

    def _follow(self, array: Any, gpu: int) -> int:
        uncaptured(array, self._what)
        stream = library_stream(array, gpu)
        if stream != current_stream(array, gpu):
            raise ArgumentError(
                f"{self._what} computes in the current stream of the arrays' library, and on_stream() has another: "
                "make that the library's current one instead (torch.cuda.stream, or `with` of a CuPy stream)"
            )
        if self._device is not None and stream != self._stream:
            self._device.wait_event(stream, self._event)
        return stream


def in_order(name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates methods that are calls of their object's `_calls`, an `InOrder`.

    `name`: the attribute that has its arrays, an array or several; "": the call's first argument.
    """
    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(call)
        def ordered(*args: P.args, **how: P.kwargs) -> R:
            self: Any = args[0]
            where = getattr(self, name) if name else next(iter((*args[1:], *how.values())), None)
            while isinstance(where, (dict, list, tuple)) and where:
                where = next(iter(where.values() if isinstance(where, dict) else where))
            with self._calls(where):
                return call(*args, **how)

        return ordered

    return decorate


def _lasting(array: Any, gpu: int) -> Any:
    """The current stream, as long as this is kept; None: nobody knows."""
    if hasattr(array, "data_ptr"):
        return sys.modules["torch"].cuda.current_stream(gpu)
    cupy = cupy_of(array)
    return None if cupy is None else cupy.cuda.get_current_stream(gpu)


def uncaptured(array: Any, what: str) -> None:
    """Raise ArgumentError where the current stream of an array is being captured into a CUDA graph."""
    gpu = gpu_of(array)
    if gpu < 0:
        return
    from hocket.system.cuda import driver

    if driver.device(gpu).is_capturing(current_stream(array, gpu)):
        raise ArgumentError(
            f"{what} cannot be captured into a CUDA graph, as ranks agree on each call when it is made: end the "
            "capture of this stream before it"
        )


def pinned(array: Any, nbytes: int) -> numpy.ndarray[Any, Any]:
    """Bytes of host memory that the GPU of `array` copies while the caller goes on.  MemoryError says how many it was.
    """
    from hocket.system.cuda import driver

    device = driver.device(gpu_of(array))
    try:
        address = device.alloc_host(max(1, nbytes))
    except TransportError as why:
        raise MemoryError(f"no room for {nbytes} bytes of pinned host memory ({why})") from None
    raw: Any = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(raw, device.free_host, address)
    made: numpy.ndarray[Any, Any] = numpy.frombuffer(raw, numpy.uint8)
    return made


@contextlib.contextmanager
def _current_in(cupy: Any, gpu: int, stream: int) -> Iterator[None]:
    with cupy.cuda.Device(gpu), cupy.cuda.ExternalStream(stream, gpu):
        yield


def cupy_of(array: Any) -> Any:
    """CuPy, if `array` is one of its arrays."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else None
