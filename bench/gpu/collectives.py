"""hocket's collectives between ranks on one GPU: the bits, the times, and what happens when a rank is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from hocket.algorithms.language import registry
from hocket.bench.gpu.driver import Gpu
from hocket.bench.gpu.kernels import dtype_of
from hocket.bench.gpu.kinds import Array, Kind, Plain, kinds, missing
from hocket.bench.gpu.processes import DIED, die_in, job
from hocket.bench.gpu.rooflines import copy_seconds
from hocket.bench.gpu.rows import Options, Row, at_least, at_most, say, size_text
from hocket.errors import ArgumentError, PeerLostError
from hocket.kernels.dtypes import by_name

COUNTS, QUICK_COUNTS = (1, 7, 1000, 100_003, 3_000_001), (7, 100_003)
DTYPES, QUICK_DTYPES = ("float32", "bfloat16", "int32"), ("float32", "bfloat16")
SIZES = ((8 << 10, 50), (1 << 20, 30), (64 << 20, 5), (256 << 20, 3))
"""Bytes, and calls in a block."""
BLOCKS = 5
GLOO_CALLS = {8 << 10: 20, 1 << 20: 5}
LARGE = 64 << 20
CALLS = 2000
RELEASED = 4.0
"""Seconds in which the waits of streams for a dead rank must have been ended."""
LIMIT = 20.0
"""Seconds of one call on the GPU, after which hocket gives up by itself."""


# ------------------------------------------------------------------------------------------------ bits


class Verdicts:
    """How many calls had other results than the same call on arrays of the host, on any rank."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.calls = comm, 0
        self.wrong: list[str] = []

    def compare(self, what: str, got: Array, want: Array) -> None:
        self.calls += 1
        if got.tobytes() != want.tobytes():
            self.wrong.append(what)

    def tell(self, name: str) -> None:
        counts = self.comm.allgather(np.array([len(self.wrong)]))
        if self.comm.rank == 0:
            note = f"wrong on each rank: {counts.tolist()}; {'; '.join(self.wrong[:4])}" if counts.any() else ""
            say(Row(name, f"{self.calls} calls", ok=not counts.any(), note=note))
        self.calls, self.wrong = 0, []


def _host(dtype: str, count: int, rank: int) -> Array:
    rng = np.random.default_rng(1000 * count + rank)
    values = rng.integers(-100, 100, count) if dtype == "int32" else rng.standard_normal(count)
    return values.astype(dtype_of(by_name(dtype)))


def _allreduces(comm: Any, options: Options) -> Iterator[tuple[str, str, Array, Callable[[Any], Any], Array]]:
    """(dtype, what, this rank's input, the call, its result on the host), for every algorithm that takes it."""
    for dtype in QUICK_DTYPES if options.quick else DTYPES:
        for count in QUICK_COUNTS if options.quick else COUNTS:
            x = _host(dtype, count, comm.rank)
            for algorithm in (None, *registry.names("allreduce")):
                call = partial(comm.allreduce, algorithm=algorithm, timeout=LIMIT)
                want = x.copy()
                try:
                    call(want)
                except ArgumentError:  # of another number of ranks, or of hosts
                    continue
                yield dtype, f"{algorithm} of {count}", x, call, want


def bits(comm: Any, options: Options) -> None:
    cases = list(_allreduces(comm, options))
    for kind in kinds(options.arrays):
        comm.barrier(timeout=60)  # a library may have been imported, at each rank's own pace
        verdicts = Verdicts(comm)
        for dtype in dict.fromkeys(case[0] for case in cases):
            for _, what, x, call, want in (case for case in cases if case[0] == dtype):
                array = kind.put(x)
                call(array)
                verdicts.compare(what, kind.get(array), want)
            verdicts.tell(f"allreduce, {kind.name}, {dtype}, every algorithm")
        _registered(comm, kind, verdicts)
        verdicts.tell(f"allreduce, {kind.name}, registered memory, every algorithm")
        _others(comm, kind, verdicts)
        verdicts.tell(f"avg, max, async, the other collectives, {kind.name}")
        _streams(comm, kind)
    if comm.rank == 0:
        gpus = comm.gpus
        say(Row("arrays go from GPU to GPU", "yes" if gpus.why_staged == "" else "no", ok=gpus.why_staged == "",
                note=gpus.why_staged or ""))  # fmt: skip
        say(Row("streams wait for", "nothing" if gpus.why_events else "words", note=gpus.why_events))
        say(Row("kernels meet", "no" if gpus.why_apart else "yes", note=gpus.why_apart))
        for name in options.arrays:
            if missing(name):
                say(Row(f"arrays of {name}", "not checked", note=missing(name)))


def _registered(comm: Any, kind: Kind, verdicts: Verdicts) -> None:
    """Twice each: when peers hear of the memory first, it still goes through the window."""
    x = _host("float32", 3_000_001, comm.rank)
    array, out = kind.put(x), kind.put(x)
    comm.register(array)
    comm.register(out)
    for algorithm in registry.names("allreduce"):
        want = x.copy()
        try:
            comm.allreduce(want, algorithm=algorithm)
        except ArgumentError:
            continue
        for turn in range(2):
            comm.allreduce(array, out=out, algorithm=algorithm, timeout=LIMIT)
            verdicts.compare(f"{algorithm}, time {turn}", kind.get(out), want)


def _others(comm: Any, kind: Kind, verdicts: Verdicts) -> None:
    size = comm.size
    for count in (5, 30_001):
        x, whole = _host("float32", count, comm.rank), _host("float32", count * size, comm.rank)
        for op in ("avg", "max"):
            want, got = x.copy(), kind.put(x)
            comm.allreduce(want, op)
            comm.allreduce(got, op, timeout=LIMIT)
            verdicts.compare(f"{op} of {count}", kind.get(got), want)
        want = x.copy()
        comm.allreduce(want)
        several = [kind.put(x) for _ in range(4)]
        for work in [comm.allreduce(array, async_op=True, timeout=LIMIT) for array in several]:
            work.wait()
        for array in several:
            verdicts.compare(f"async of {count}", kind.get(array), want)
        for name, given, length in (
            ("reduce_scatter", whole, count), ("allgather", x, count * size), ("alltoall", whole, count * size)
        ):  # fmt: skip
            want = np.empty(length, np.float32)
            out = kind.put(np.full(length, np.nan, np.float32))
            getattr(comm, name)(given.copy(), out=want)
            getattr(comm, name)(kind.put(given), out=out, timeout=LIMIT)
            verdicts.compare(f"{name} of {count}", kind.get(out), want)
        for root in range(size):
            got = kind.put(x)
            comm.broadcast(got, root, timeout=LIMIT)
            verdicts.compare(f"broadcast of {count} from {root}", kind.get(got), _host("float32", count, root))


def _streams(comm: Any, kind: Any) -> None:
    """The input is made, and the result used, in another stream than the default one, without a synchronisation."""
    if not hasattr(kind, "stream"):
        return
    wrong = 0
    with kind.stream():
        for turn in range(10):
            x = kind.full(1 << 20, 0.0)
            for _ in range(20):
                x += comm.rank + turn
            comm.allreduce(x, timeout=LIMIT)
            x += 1
            want = 20 * (comm.size * (comm.size - 1) / 2 + comm.size * turn) + 1
            wrong += int((kind.get(x) != want).sum())
    verdict = comm.allreduce(np.array([wrong]))
    if comm.rank == 0:
        say(Row(f"another stream than the default one, {kind.name}", f"{int(verdict[0])} wrong", ok=verdict[0] == 0))


# ------------------------------------------------------------------------------------------------ times


def _blocks(comm: Any, call: Callable[[], object], settle: Callable[[], None], calls: int, blocks: int) -> float:
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
    tell(Row("copy, read and written", rate / 1e9, "GB/s"))
    sizes = [(n, calls) for n, calls in SIZES if n <= options.largest]
    found: dict[int, float] = {}
    for kind in kinds(options.arrays):
        comm.barrier(timeout=60)
        for nbytes, calls in sizes:
            x = kind.put(np.zeros(nbytes // 4, np.float32))
            took = _blocks(comm, partial(comm.allreduce, x, timeout=LIMIT), kind.synchronize, calls, BLOCKS)
            found[nbytes] = min(took, found.get(nbytes, took))
            tell(_time_row(f"allreduce {size_text(nbytes)}, {kind.name}", nbytes, took, world, rate))
            if nbytes >= LARGE:
                comm.register(x)
                took = _blocks(comm, partial(comm.allreduce, x, timeout=LIMIT), kind.synchronize, calls, BLOCKS)
                found[nbytes] = min(took, found[nbytes])
                name = f"allreduce {size_text(nbytes)}, {kind.name}, registered"
                tell(_time_row(name, nbytes, took, world, rate, target=True))
        _calls(comm, kind, tell)
    gloo = _gloo(comm)
    if gloo is None:
        tell(Row("Gloo with CUDA tensors", "not measured", note=missing("torch")))
        return
    torch_kind: Any = next(iter(kinds(("torch",))))
    for nbytes, _ in sizes:
        x = torch_kind.put(np.zeros(nbytes // 4, np.float32))
        calls, blocks = GLOO_CALLS.get(nbytes, 1), 1 if nbytes > LARGE else 3
        took = _blocks(comm, partial(gloo.all_reduce, x), torch_kind.synchronize, calls, blocks)
        tell(Row(f"Gloo, {size_text(nbytes)}", 1e6 * took, "us"))
        ratio, name = took / found[nbytes], f"times faster than Gloo, {size_text(nbytes)}"
        tell(at_least(name, ratio, "x", 10) if nbytes >= LARGE else Row(name, ratio, "x"))
    gloo.destroy_process_group()


def _time_row(name: str, nbytes: int, took: float, world: int, rate: float, target: bool = False) -> Row:
    two, one = (3 * world + 1) * nbytes / rate, world * (world + 1) * nbytes / rate
    note = f"floors: {1e6 * two:.1f} us in two shots, {1e6 * one:.1f} us in one; the ratio is that of the lower one"
    floor = min(one, two)
    if target:
        return Row(name, 1e6 * took, "us", ">= 0.75", floor >= 0.75 * took, floor / took, note)
    if nbytes == 8 << 10:
        return at_most(name, 1e6 * took, "us", 60, ratio=floor / took, note=note)
    return Row(name, 1e6 * took, "us", ratio=floor / took, note=note)


def _calls(comm: Any, kind: Kind, tell: Callable[[Row], None]) -> None:
    """What the host spends on a call when nobody waits for the GPU."""
    host = np.zeros(2048, np.float32)
    x = kind.put(host)
    for name, array, count in (("", x, CALLS), (", of the host", host, CALLS)):
        comm.allreduce(array, timeout=LIMIT)
        comm.barrier()
        start = time.perf_counter()
        for _ in range(count):
            comm.allreduce(array, timeout=LIMIT)
        took = (time.perf_counter() - start) / count
        kind.synchronize()
        note = f"{1 / took:.0f} calls a second"
        tell(Row(f"8 KiB allreduce, nobody waits, {kind.name}{name}", 1e6 * took, "us", note=note))


# ------------------------------------------------------------------------------------------------ a rank is killed


def lose(comm: Any, options: Options) -> None:
    """The last rank dies in the middle of large calls.  The GPU may never be done then: waits are bounded."""
    gpu = Gpu()
    x = Plain().put(np.zeros(min(options.largest, 256 << 20) // 4, np.float32))
    comm.allreduce(x, timeout=LIMIT)
    gpu.drained(0, LIMIT)
    comm.barrier()
    start = time.monotonic()
    if comm.rank == comm.size - 1:
        die_in(0.05)
    name, found = f"rank {comm.rank} of {comm.size}", "nothing"
    try:
        while time.monotonic() < start + 10:
            comm.allreduce(x, timeout=LIMIT)
            gpu.drained(0, 2)
    except PeerLostError as why:
        found = f"PeerLostError: {str(why)[:150]}"
    took = time.monotonic() - start - 0.05
    ok = found.startswith("PeerLostError")
    say(Row(f"{name} hears of it after", took, "s", "<= 5", ok and took <= 5, note=found))
    stuck = gpu.drained(0, RELEASED)
    say(Row(f"{name}: the stream of the calls", stuck or "is done", ok=not stuck))
    start = time.monotonic()
    comm.close()
    say(at_most(f"{name} leaves the job in", time.monotonic() - start, "s", 5))
    if stuck:
        os._exit(0)  # giving back the array waits for the stream


def killed(options: Options) -> Iterator[Row]:
    for world in (2, 4):
        start, name = time.monotonic(), f"{world} ranks, the last is killed"
        yield from job(name, world, lose, options, 20, {world - 1: DIED})
        yield at_most(f"{name}: all have ended after", time.monotonic() - start, "s", 20)


def _part(work: Callable[[Any, Options], None], size: int, seconds: float, options: Options) -> Iterator[Row]:
    yield from job(f"{size} ranks", size, work, options, seconds)


bits_of_two, bits_of_four = partial(_part, bits, 2, 75), partial(_part, bits, 4, 85)
times_of_two, times_of_four = partial(_part, times, 2, 55), partial(_part, times, 4, 85)
