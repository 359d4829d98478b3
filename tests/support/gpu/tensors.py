"""torch tensors in the memory of the stand-in's GPU, and as much of torch.cuda as hocket.torch uses, on the stand-in.

torch for CPUs has no CUDA.  What it says of streams, events and futures is done here as its documentation has it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch._jit_internal import _extract_tensors

from hocket.system.cuda import driver
from hocket.torch.calls import works
from support.gpu.arrays import GpuArray

_now = threading.local()
_recorded: list[tuple[int, int]] = []


class Stream:
    """torch.cuda.ExternalStream."""

    def __init__(self, address: int, device: Any = None) -> None:
        self.cuda_stream = address

    def wait_stream(self, other: Stream) -> None:
        driver.device(0).follow(self.cuda_stream, other.cuda_stream)


class Event:
    def record(self, stream: Stream) -> None:
        """Instead of an event: a stream of its own that follows."""
        self.behind = driver.device(0).stream()
        driver.device(0).follow(self.behind, stream.cuda_stream)

    def query(self) -> bool:
        return driver.device(0).is_done(self.behind)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            driver.device(0).end_stream(self.behind)


def current_stream(device: Any = None) -> Stream:
    return getattr(_now, "stream", Stream(1))


@contextlib.contextmanager
def stream(to: Stream) -> Iterator[None]:
    before = current_stream()
    _now.stream = to
    try:
        yield
    finally:
        _now.stream = before


class Tensor(torch.Tensor):
    """Its memory may be touched by the driver alone."""

    is_cuda, is_cpu = True, False  # type: ignore[assignment]

    def get_device(self) -> int:  # type: ignore[override]
        return 0

    def record_stream(self, to: Stream) -> None:  # type: ignore[override]
        _recorded.append((self.data_ptr(), to.cuda_stream))

    def new_empty(self, *shape: Any, **_: Any) -> Tensor:
        return empty(torch.Size(shape[0]) if not isinstance(shape[0], int) else torch.Size(shape))

    def copy_(self, other: torch.Tensor, non_blocking: bool = False) -> Tensor:  # type: ignore[override]
        nbytes = self.numel() * self.element_size()
        driver.device(0).copy(self.data_ptr(), other.data_ptr(), nbytes, current_stream().cuda_stream)
        return self


_arrays: list[Any] = []


def on(array: GpuArray) -> Tensor:
    """The array's memory, as a tensor of float32."""
    _arrays.append(array)
    memory = (ctypes.c_char * max(1, array.nbytes)).from_address(array.address)
    return torch.frombuffer(memory, dtype=torch.float32, count=int(np.prod(array.shape))).as_subclass(Tensor)


def empty(shape: Any) -> Tensor:
    return on(GpuArray(int(np.prod(shape)), np.float32)).view(shape)  # type: ignore[return-value]


def late(values: Any, address: int) -> Tensor:
    """A tensor whose values come by this stream, long after the call."""
    array = GpuArray(values.shape, np.float32, stream=address)
    rubbish = np.full(values.shape, 1e6, np.float32)
    _arrays.append((rubbish, values))
    for _ in range(4):
        array.set_later(rubbish)
    array.set_later(values)
    return on(array)


def read(tensor: torch.Tensor, address: int) -> Any:
    """The values that this stream has left there."""
    host = np.empty(tensor.shape, np.float32)
    driver.device(0).copy(host.ctypes.data, tensor.data_ptr(), host.nbytes, address)
    driver.device(0).synchronize(address)
    return host


def free() -> None:
    """Free memory like the allocator: ask the streams that it was used in, whenever that is."""
    for _, address in _recorded:
        Event().record(Stream(address))


def kept_for(tensor: torch.Tensor) -> set[int]:
    """The streams that the allocator was told of."""
    return {stream for at, stream in _recorded if at == tensor.data_ptr()}


class Future:
    """torch.futures.Future of a device: completed in the order of the stream that is current then."""

    def __init__(self, devices: Any = None) -> None:
        assert devices, "a future of CUDA tensors must be told of their device"
        self._set, self._calls, self._value = threading.Event(), [], None  # type: ignore[var-annotated]
        self.stream: Stream | None = None

    def set_result(self, value: Any) -> None:
        if not isinstance(value, BaseException):  # what a callback raised
            _extract_tensors(value)  # as torch does, by pickling
        self._value, self.stream = value, current_stream()
        self._set.set()
        for call in self._calls:
            call()

    def value(self) -> Any:
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    def wait(self) -> Any:
        assert self._set.wait(20) and self.stream is not None
        current_stream().wait_stream(self.stream)
        return self.value()

    def then(self, function: Callable[[Future], Any]) -> Future:
        made = Future(devices=[0])

        def call() -> None:
            assert self.stream is not None
            own = Stream(driver.device(0).stream())  # it follows this one
            own.wait_stream(self.stream)
            with stream(own):
                try:
                    made.set_result(function(self))
                except Exception as error:
                    made.set_result(error)

        self._calls.append(call)
        if self._set.is_set():
            call()
        return made


def install() -> None:
    """Let hocket.torch find these classes in the place of torch's."""
    module: Any = torch.cuda
    module.ExternalStream, module.Event, module.stream, module.current_stream = Stream, Event, stream, current_stream
    works.Future = Future
