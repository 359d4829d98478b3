"""The cost of single calls of the driver to the host: the floor of what a collective costs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from hocket.conformance.gpu_check.driver import Gpu
from hocket.conformance.gpu_check.findings import Finding, Options
from hocket.kernels.gpu import catalogue

CALLS, BLOCKS = 100, 21
LEGACY = 0


def calls(options: Options) -> Iterator[Finding]:
    """By ctypes or Cython, which takes about a microsecond of each."""
    gpu = Gpu()
    event, out = gpu.event(), gpu.alloc(64)
    for name, stream in (("a stream of its own", gpu.device.stream()), ("the legacy stream", LEGACY)):
        kernel = gpu.prepared(catalogue.CHECKSUM, 1, out, 0, out)
        for what, call in (
            ("is it captured", partial(gpu.device.is_capturing, stream)),
            ("record an event", partial(gpu.record, event, stream)),
            ("wait for an event", partial(gpu.await_event, stream, event)),
            ("launch a kernel of one block", partial(kernel, stream)),
            ("launch it, and wait for its end", partial(_settled, gpu, kernel, stream)),
        ):
            yield Finding(f"{what}, {name}", 1e6 * _seconds(gpu, call), "us")


def _settled(gpu: Gpu, kernel: Callable[[int], None], stream: int) -> None:
    kernel(stream)
    gpu.device.synchronize(stream)


def _seconds(gpu: Gpu, call: Callable[[], object]) -> float:
    """The median of blocks of calls; between blocks the GPU comes to its end."""
    times = []
    for _ in range(BLOCKS):
        gpu.device.settle()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS)
    return median(times)
