"""hocket's collectives between ranks on one GPU: the bits, and what happens when a rank is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from hocket.algorithms.language import registry
from hocket.conformance.gpu_check.driver import Gpu
from hocket.conformance.gpu_check.findings import Finding, Options, at_most, say
from hocket.conformance.gpu_check.kinds import Array, ArrayLibrary, Plain, kinds, missing
from hocket.conformance.gpu_check.laws import dtype_of
from hocket.conformance.gpu_check.processes import DIED, LIMIT, die_in, job
from hocket.conformance.gpu_check.times import times
from hocket.errors import ArgumentError, PeerLostError
from hocket.kernels.dtypes import by_name

COUNTS, QUICK_COUNTS = (1, 7, 1000, 100_003, 3_000_001), (7, 100_003)
DTYPES, QUICK_DTYPES = ("float32", "bfloat16", "int32"), ("float32", "bfloat16")
RELEASED = 4.0
"""Seconds in which the waits of streams for a dead rank must have been ended."""


class Verdicts:
    """The number of calls whose results differ from the same call's on arrays of the host, on any rank."""

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
            say(Finding(name, f"{self.calls} calls", ok=not counts.any(), note=note))
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
        say(Finding("arrays go from GPU to GPU", "yes" if gpus.why_staged == "" else "no", ok=gpus.why_staged == "",
                note=gpus.why_staged or ""))  # fmt: skip
        say(Finding("streams wait for", "nothing" if gpus.why_events else "words", note=gpus.why_events))
        say(Finding("kernels meet", "no" if gpus.why_apart else "yes", note=gpus.why_apart))
        for name in options.arrays:
            if missing(name):
                say(Finding(f"arrays of {name}", "not checked", note=missing(name)))


def _registered(comm: Any, kind: ArrayLibrary, verdicts: Verdicts) -> None:
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


def _others(comm: Any, kind: ArrayLibrary, verdicts: Verdicts) -> None:
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
        say(Finding(f"another stream than the default one, {kind.name}", f"{int(verdict[0])} wrong",
                ok=bool(verdict[0] == 0)))  # fmt: skip


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
    say(Finding(f"{name} hears of it after", took, "s", "<= 5", ok and took <= 5, note=found))
    stuck = gpu.drained(0, RELEASED)
    say(Finding(f"{name}: the stream of the calls", stuck or "is done", ok=not stuck))
    start = time.monotonic()
    comm.close()
    say(at_most(f"{name} leaves the job in", time.monotonic() - start, "s", 5))
    if stuck:
        os._exit(0)  # giving back the array waits for the stream


def killed(options: Options) -> Iterator[Finding]:
    for world in (2, 4):
        start, name = time.monotonic(), f"{world} ranks, the last is killed"
        yield from job(name, world, lose, options, 20, {world - 1: DIED})
        yield at_most(f"{name}: all have ended after", time.monotonic() - start, "s", 20)


def _part(work: Callable[[Any, Options], None], size: int, seconds: float, options: Options) -> Iterator[Finding]:
    yield from job(f"{size} ranks", size, work, options, seconds)


bits_of_two, bits_of_four = partial(_part, bits, 2, 75), partial(_part, bits, 4, 85)
times_of_two, times_of_four = partial(_part, times, 2, 55), partial(_part, times, 4, 85)
