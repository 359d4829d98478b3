"""The kernels' rates beside that at which the GPU copies its memory; and the number of blocks.

Rates count what is read and what is written.  Buffers are far larger than the L2 cache.  A sum of encoded vectors moves
few bytes and computes much: its floor is what encoding as many floats takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hocket.conformance.gpu_check.driver import Gpu
from hocket.conformance.gpu_check.findings import Finding, Options, at_least, size_text
from hocket.kernels.codecs import CODECS
from hocket.kernels.gpu import catalogue, launch
from hocket.kernels.gpu.catalogue import Kernel

BLOCKS = (2, 4, 8, 16)
"""Blocks of a multiprocessor."""
AS_NOW = 16
"""The number that launch.geometry has."""
TARGET = 0.9
OF_ENCODING = 0.75
"""The part of a codec's rate of encoding, in floats, that its sums of two must reach."""
INPUTS = 8
SEGMENT = (1 << 20) - 48
"""Bytes of what is packed; not a power of two."""


class KernelRun(NamedTuple):
    """A kernel over buffers of n bytes: what it moves, and its arguments at turn i."""

    name: str
    kernel: Kernel
    moved: float
    values: Callable[[int], Sequence[Any]]
    like: str = ""
    """The work whose time is its floor, instead of a copy's."""


def copy_seconds(gpu: Gpu, to: int, sources: Sequence[int], nbytes: int) -> float:
    return gpu.seconds([partial(gpu.device.copy, to, source, nbytes, 0) for source in sources])


def works(gpu: Gpu, given: Sequence[int], out: int, n: int) -> Iterator[KernelRun]:
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        for k in (2, 4, 8):

            def operands(i: int, k: int = k, size: int = size) -> Sequence[Any]:
                return launch.pointers([given[(i + j) % INPUTS] for j in range(k)]), out, n // size, k

            yield KernelRun(f"reduce {dtype}, k={k}", catalogue.reduce(dtype, "sum"), (k + 1) * n, operands)
    narrow, widen = catalogue.cast("float32", "bfloat16"), catalogue.cast("bfloat16", "float32")
    yield KernelRun("cast float32 to bfloat16", narrow, 1.5 * n, lambda i: (out, given[i], n // 4, 1.0))
    yield KernelRun("cast bfloat16 to float32", widen, 1.5 * n, lambda i: (out, given[i], n // 4, 1.0))
    for codec in CODECS:
        kernels, part = catalogue.coders(codec), n * codec.itemsize / (4 * codec.block)
        yield KernelRun(f"encode {codec}", kernels.encode, n + part, lambda i: (out, given[i], n // 4, 1.0, 1, 0))
        yield KernelRun(f"decode {codec}", kernels.decode, n + part, lambda i: (out, given[i], n // 4, 1.0))
        yield KernelRun(f"sum of {codec}, k=2", kernels.fold, 3 * part,
                   lambda i: (launch.ways([given[i], given[(i + 1) % INPUTS]]), out, n // 4, 2, 1, 0),
                   like=f"encode {codec}")  # fmt: skip
    packs = []
    for source in given:
        starts = range(0, n - SEGMENT, SEGMENT + 48)
        rows = [(source + at, out + i * SEGMENT, SEGMENT) for i, at in enumerate(starts)]
        if not rows:
            return
        segments, pieces = launch.segment_table(rows)
        packs.append((gpu.alloc(segments.nbytes, segments), len(segments), pieces))
    yield KernelRun("pack (segments copied together)", catalogue.COPY, 2.0 * packs[0][1] * SEGMENT, lambda i: packs[i])


def rooflines(options: Options) -> Iterator[Finding]:
    gpu, n = Gpu(), options.largest // 4096 * 4096
    noise = np.random.default_rng(1).standard_normal(1 << 20).astype(np.float32)
    given = [gpu.alloc(n, noise) for _ in range(INPUTS)]
    out = gpu.alloc(n)
    copied = 2 * n / copy_seconds(gpu, out, given, n) / 1e9
    yield Finding(f"copy of {size_text(n)}, read and written", copied, "GB/s")
    relative: dict[int, list[float]] = {blocks: [] for blocks in BLOCKS}
    seconds: dict[str, float] = {}
    for work in works(gpu, given, out, n):
        rates = {}
        for blocks in BLOCKS:
            grid = blocks * gpu.multiprocessors
            launches = [gpu.prepared(work.kernel, grid, *work.values(i)) for i in range(INPUTS)]
            took = gpu.seconds(launches)
            rates[blocks] = work.moved / took / 1e9
            if blocks == AS_NOW:
                seconds[work.name] = took
        if work.like:
            ratio = seconds[work.like] / seconds[work.name]
            note = f"{n / 4e9 / seconds[work.name]:.0f} G floats/s; the ratio is to: {work.like}"
            yield Finding(work.name, rates[AS_NOW], "GB/s", f">= {OF_ENCODING}", ratio >= OF_ENCODING, ratio, note)
            continue
        for blocks, rate in rates.items():
            relative[blocks].append(rate / copied)
        best = max(rates, key=lambda blocks: rates[blocks])
        note = "blocks of a multiprocessor: " + ", ".join(f"{b}: {rate / copied:.3f}" for b, rate in rates.items())
        fast, ratio = rates[best] >= TARGET * copied, rates[best] / copied
        yield Finding(work.name, rates[best], "GB/s", f">= {TARGET}", fast, ratio, f"{note}; best {best}")
        now = rates[AS_NOW] / copied
        yield at_least(f"{work.name}, {AS_NOW} blocks as now", now, "of copy", TARGET, ratio=now)
    least = {blocks: min(ratios) for blocks, ratios in relative.items()}
    best = max(least, key=lambda blocks: least[blocks])
    note = ", ".join(f"{blocks}: {ratio:.3f}" for blocks, ratio in least.items())
    yield Finding("blocks of a multiprocessor with the best worst kernel", best, note=f"the worst of each: {note}")
