"""The times of hocket's collectives between ranks on one GPU, beside copies there and beside Gloo."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from hocket.conformance.gpu_check.driver import Gpu
from hocket.conformance.gpu_check.findings import Finding, Options, at_least, at_most, say, size_text
from hocket.conformance.gpu_check.kinds import ArrayLibrary, kinds, missing
from hocket.conformance.gpu_check.processes import LIMIT
from hocket.conformance.gpu_check.rooflines import copy_seconds

SIZES = ((8 << 10, 50), (1 << 20, 30), (64 << 20, 5), (256 << 20, 3))
"""Bytes, and calls in a block."""
BLOCKS = 5
GLOO_CALLS = {8 << 10: 20, 1 << 20: 5}
LARGE = 64 << 20
BURST, BURSTS = 20, 100
"""Calls that are issued without waiting; and how often."""


def in_blocks(comm: Any, call: Callable[[], object], settle: Callable[[], None], calls: int, blocks: int) -> float:
    """The median of what a call took the slowest rank; every call is waited for."""
    seconds = []
    for block in range(blocks + 1):
        comm.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
            settle()
        if block:  # the first warms up
            seconds.append((time.perf_counter() - start) / calls)
    slowest = comm.allreduce(np.array(seconds), "max")
    return float(median(slowest))


def _copy_rate(comm: Any, options: Options) -> float:
    """Bytes a second, read and written, by one rank while the others wait."""
    rate = np.zeros(1)
    if comm.rank == 0:
        gpu, n = Gpu(), min(options.largest, LARGE * 8)
        to, source = gpu.alloc(n), gpu.alloc(n, np.ones(1 << 16, np.float32))
        rate[0] = 2 * n / copy_seconds(gpu, to, [source] * 5, n)
        gpu.device.free(to)
        gpu.device.free(source)
    comm.broadcast(rate, 0)
    return float(rate[0])


def _gloo(comm: Any) -> Any:
    """torch.distributed with Gloo among the same processes, or None."""
    if missing("torch"):
        return None
    import datetime
    import importlib

    dist: Any = importlib.import_module("torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{os.environ['PLACE']}/store", rank=comm.rank,
                            world_size=comm.size, timeout=datetime.timedelta(seconds=30))  # fmt: skip
    return dist


def times(comm: Any, options: Options) -> None:
    world, rate = comm.size, _copy_rate(comm, options)
    tell = say if comm.rank == 0 else lambda row: None
    tell(Finding("copy, read and written", rate / 1e9, "GB/s"))
    sizes = [(n, calls) for n, calls in SIZES if n <= options.largest]
    found: dict[int, float] = {}
    for kind in kinds(options.arrays):
        comm.barrier(timeout=60)
        for nbytes, calls in sizes:
            x = kind.put(np.zeros(nbytes // 4, np.float32))
            took = in_blocks(comm, partial(comm.allreduce, x, timeout=LIMIT), kind.synchronize, calls, BLOCKS)
            found[nbytes] = min(took, found.get(nbytes, took))
            tell(_time_row(f"allreduce {size_text(nbytes)}, {kind.name}", nbytes, took, world, rate))
            if nbytes >= LARGE:
                comm.register(x)
                took = in_blocks(comm, partial(comm.allreduce, x, timeout=LIMIT), kind.synchronize, calls, BLOCKS)
                found[nbytes] = min(took, found[nbytes])
                name = f"allreduce {size_text(nbytes)}, {kind.name}, registered"
                tell(_time_row(name, nbytes, took, world, rate, target=True))
        _calls(comm, kind, tell)
    gloo = _gloo(comm)
    if gloo is None:
        tell(Finding("Gloo with CUDA tensors", "not measured", note=missing("torch")))
        return
    torch_kind: Any = next(iter(kinds(("torch",))))
    for nbytes, _ in sizes:
        x = torch_kind.put(np.zeros(nbytes // 4, np.float32))
        calls, blocks = GLOO_CALLS.get(nbytes, 1), 1 if nbytes > LARGE else 3
        took = in_blocks(comm, partial(gloo.all_reduce, x), torch_kind.synchronize, calls, blocks)
        tell(Finding(f"Gloo, {size_text(nbytes)}", 1e6 * took, "us"))
        ratio, name = took / found[nbytes], f"times faster than Gloo, {size_text(nbytes)}"
        tell(at_least(name, ratio, "x", 10) if nbytes >= LARGE else Finding(name, ratio, "x"))
    gloo.destroy_process_group()


def _time_row(name: str, nbytes: int, took: float, world: int, rate: float, target: bool = False) -> Finding:
    two, one = (3 * world + 1) * nbytes / rate, world * (world + 1) * nbytes / rate
    note = f"floors: {1e6 * two:.1f} us in two shots, {1e6 * one:.1f} us in one; the ratio is that of the lower one"
    floor = min(one, two)
    if target:
        return Finding(name, 1e6 * took, "us", ">= 0.75", floor >= 0.75 * took, floor / took, note)
    if nbytes == 8 << 10:
        return at_most(name, 1e6 * took, "us", 60, ratio=floor / took, note=note)
    return Finding(name, 1e6 * took, "us", ratio=floor / took, note=note)


def _calls(comm: Any, kind: ArrayLibrary, tell: Callable[[Finding], None]) -> None:
    """The host's time for a call, in bursts that the GPU's queue takes; and for the same one of a host array."""
    host = np.zeros(2048, np.float32)
    for name, array in (("", kind.put(host)), (", of the host", host)):
        times = []
        for burst in range(BURSTS + 3):
            kind.synchronize()
            comm.barrier()
            start = time.perf_counter()
            for _ in range(BURST):
                comm.allreduce(array, timeout=LIMIT)
            if burst >= 3:  # the first warm up
                times.append((time.perf_counter() - start) / BURST)
        kind.synchronize()
        note = f"90 of 100 bursts of {BURST} are below {1e6 * sorted(times)[len(times) * 9 // 10]:.1f}"
        tell(Finding(f"8 KiB allreduce, the host's share, {kind.name}{name}", 1e6 * median(times), "us", note=note))
