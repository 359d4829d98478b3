"""The kernels that meet inside the GPU, with the streams of one process as ranks: they really run side by side.

Every wait in them ends by itself after LIMIT_NS.  What is timed includes the launches from one thread of Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from hocket.conformance.gpu_check.driver import Gpu, Launch
from hocket.conformance.gpu_check.findings import Finding, Options, size_text
from hocket.conformance.gpu_check.laws import dtype_of, samples
from hocket.conformance.oracle import Array, same
from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import by_name
from hocket.kernels.gpu import catalogue, launch
from hocket.kernels.gpu.catalogue import Kernel

WORLDS = (2, 4, 8)
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
LIMIT_NS = 1_000_000_000
ROUNDS, BLOCKS = 20, 3
PATIENCE = 20.0


class Ranks:
    """The streams, and the windows, scratch memory, flags and status words of each."""

    def __init__(self, gpu: Gpu, world: int, nbytes: int) -> None:
        self.gpu, self.world, self.epoch, self.room = gpu, world, 0, nbytes
        self.streams = [gpu.device.stream() for _ in range(world)]
        zeros = np.zeros(launch.FLAG_BYTES, np.uint8)
        window = launch.blocks_bytes(nbytes, world)
        self.xs, self.even, self.odd, self.outs, self.scratches = (
            [gpu.alloc(size, np.full(64, 0xA5, np.uint8)) for _ in range(world)]
            for size in (nbytes, window, window, world * nbytes, launch.scratch_bytes(nbytes, world))
        )
        self.flags = [gpu.alloc(launch.FLAG_BYTES, zeros) for _ in range(world)]
        self.words = [gpu.alloc(256, zeros[:256]) for _ in range(world)]  # status; the host's two
        self.scratch = launch.pointers(self.scratches)

    def close(self) -> None:
        for address in (*self.xs, *self.even, *self.odd, *self.outs, *self.scratches, *self.flags, *self.words):
            self.gpu.device.free(address)
        for stream in self.streams:
            self.gpu.device.end_stream(stream)

    def peers(self, rank: int) -> launch.Peers:
        words = self.words[rank]
        return launch.Peers(launch.pointers(self.flags).at, words, words + 4, LIMIT_NS, 0, rank, self.world)

    def launches(self, kernel: Kernel, nbytes: int, values: Callable[[int], Sequence[Any]]) -> list[Launch]:
        """`values`: what comes after the windows, of a kernel that has any."""
        # All blocks of all ranks must have a processor.
        grid = launch.meeting_geometry(nbytes, max(1, self.gpu.multiprocessors // self.world))[0]
        windows = (launch.pointers(self.even),) if len(kernel.params) > 1 else ()
        return [self.gpu.prepared(kernel, grid, self.peers(r), *windows, *values(r)) for r in range(self.world)]

    def go(self, launches: Sequence[Launch]) -> None:
        """One call, of all ranks."""
        self.epoch += 1
        for one, stream in zip(launches, self.streams, strict=True):
            one.kept[0].epoch = self.epoch
            if len(one.kept) > 1:
                one.kept[1].at[:] = launch.pointers(self.odd if self.epoch % 2 else self.even).at
            one(stream)

    def drained(self) -> str:
        """Why not all kernels came to their end; "" if they did."""
        for rank, stream in enumerate(self.streams):
            why = self.gpu.drained(stream, PATIENCE)
            if why:
                return f"rank {rank}: {why}"
        for rank, words in enumerate(self.words):
            status = int(self.fetch(words, np.empty(1, np.uint32))[0])
            if status:
                return f"rank {rank}: {launch.explain_status(status)}"
        return ""

    def fetch(self, address: int, into: Array) -> Array:
        self.gpu.device.copy(into.ctypes.data, address, into.nbytes, 0)
        self.gpu.device.synchronize(0)
        return into

    def fill(self, xs: Sequence[Array]) -> None:
        for there, x in zip(self.xs, xs, strict=True):
            self.gpu.device.copy(there, x.ctypes.data, x.nbytes, 0)
        self.gpu.device.synchronize(0)


Law = Callable[[list[Array], int], Array]


def collectives(ranks: Ranks, dtype: str, count: int) -> dict[str, tuple[list[Launch], Law]]:
    """Name -> the launches, and what rank r must have."""
    row, world = by_name(dtype), ranks.world
    nbytes = count * row.itemsize

    block = count // world

    def whole(xs: list[Array]) -> Array:
        out = np.empty_like(xs[0])
        reduce.reduce_arrays(out, xs, "sum")
        return out

    def vectors(n: int) -> Callable[[int], Sequence[Any]]:
        return lambda r: (ranks.xs[r], ranks.outs[r], n)

    shots = catalogue.shots(dtype, "sum")
    return {
        "one shot": (ranks.launches(shots.one_shot, nbytes, vectors(count)), lambda xs, r: whole(xs)),
        "two shots": (ranks.launches(shots.two_shot, nbytes, lambda r: (ranks.scratch, *vectors(count)(r))),
                      lambda xs, r: whole(xs)),
        "reduce_scatter": (ranks.launches(shots.reduce_scatter, nbytes, vectors(block)),
                           lambda xs, r: whole(xs)[block * r : block * (r + 1)]),
        "allgather": (ranks.launches(catalogue.ALLGATHER, nbytes, vectors(nbytes)), lambda xs, r: np.concatenate(xs)),
    }  # fmt: skip


def results(ranks: Ranks, dtypes: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Faults of each collective.  It ends with the first that gives up: the status word then stops all."""
    rng = np.random.default_rng(7)
    wrong: list[str] = []
    for dtype in dtypes:
        for count in counts:
            for why, gave_up in _wrong(ranks, dtype, count, rng):
                wrong.append(why)
                if gave_up:
                    return wrong
    return wrong


def _wrong(ranks: Ranks, dtype: str, count: int, rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    """Three rounds of each, of other inputs."""
    row = by_name(dtype)
    for name, (launches, law) in collectives(ranks, dtype, count).items():
        for _ in range(3):
            xs = [samples(row, count, rng) for _ in range(ranks.world)]
            ranks.fill(xs)
            ranks.go(launches)
            why = ranks.drained()
            if why:
                yield f"{name}: {why}", True
            for rank in range(ranks.world):
                want = law(xs, rank)
                got = ranks.fetch(ranks.outs[rank], np.empty(want.shape, dtype_of(row)))
                bad = int((~same(got, want)).sum())
                if bad:
                    yield f"{name}, {dtype}, {count} elements: {bad} wrong at rank {rank}", False


def _microseconds(ranks: Ranks, launches: Sequence[Launch]) -> float:
    times = []
    for block in range(BLOCKS + 1):
        start = time.perf_counter()
        for _ in range(ROUNDS):
            ranks.go(launches)
        why = ranks.drained()
        if why:
            raise RuntimeError(why)
        if block:
            times.append(1e6 * (time.perf_counter() - start) / ROUNDS)
    return median(times)


def flags(options: Options) -> Iterator[Finding]:
    gpu = Gpu()
    sizes = [n for n in (SIZES[:2] if options.quick else SIZES) if n <= options.largest]
    for world in WORLDS:
        ranks = Ranks(gpu, world, max(sizes))
        dtypes = ("float32",) if options.quick else ("float32", "bfloat16", "int8", "complex128")
        wrong = results(ranks, dtypes, (1, 257, min(sizes[-1] // 16, 100_003)))
        yield Finding(f"{world} ranks: results", f"{len(wrong)} wrong", ok=not wrong, note="; ".join(wrong[:3]))
        if wrong:
            continue
        barrier = ranks.launches(catalogue.BARRIER, 1, lambda r: ())
        yield Finding(f"{world} ranks: barrier", _microseconds(ranks, barrier), "us")
        for nbytes in sizes:
            for name, (launches, _) in collectives(ranks, "float32", nbytes // 4).items():
                yield Finding(f"{world} ranks: {name}, {size_text(nbytes)}", _microseconds(ranks, launches), "us")
        ranks.close()
