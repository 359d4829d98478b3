"""Every kernel that needs no second GPU, against the CPU's kernels or its law in NumPy.

Random bits, odd lengths, misaligned starts, in place.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

import numpy as np

from hocket.compression import QSGD, Int, Natural, OneBit, TernGrad
from hocket.conformance.gpu_check.arena import Arena
from hocket.conformance.gpu_check.driver import Gpu
from hocket.conformance.gpu_check.findings import Finding, Options
from hocket.conformance.gpu_check.laws import checksum, dtype_of, samples
from hocket.conformance.oracle import SMALL, Array
from hocket.kernels import ops
from hocket.kernels.codecs import CODECS, HALVES, Codec
from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import DTYPES, DType, by_name
from hocket.kernels.gpu import catalogue, launch
from hocket.kernels.gpu.catalogue import Kernel, Module
from hocket.kernels.gpu.source import module_source
from hocket.system.cores import usable_cores
from hocket.system.cuda import nvrtc

LENGTHS = (1, 7, 8, 9, 255, 4099)
FACTORS = (1 / 3, 0.5, -2.5, -0.0, 1e300, np.inf, np.nan)
MEETINGS = ("hk_barrier", "hk_allgather", "hk_one_shot_", "hk_two_shot_", "hk_reduce_scatter_")
"""Checked with several streams, in flags.py."""
QUICK = re.compile(
    r"hk_(copy|checksum|(reduce|many)_(sum|max)_(float32|bfloat16|int32)|scale_float32|"
    r"cast_(float32_bfloat16|bfloat16_float32)|(encode|decode|fold)_(whole_256_260_8|sign)_\w+)"
)
FLOATS = (1, 63, 255, 256, 257, 4099, 65_539)
"""Lengths of vectors that are encoded."""
CODED = (*CODECS, *HALVES.values(), Int(3), OneBit(), Natural(), QSGD(22, norm="l2"), TernGrad())
KEY = 0xFEDCBA9876543210
"""The key of random numbers."""
PATIENCE = 100.0
"""Seconds for all to be compiled."""


# ------------------------------------------------------------------------------------------------ checks
# Each yields, for every launch, what was wrong with it.


def _grids(arena: Arena, nbytes: int) -> tuple[int, int]:
    """The usual grid, and one that is too small, so that every thread must loop."""
    return launch.geometry(nbytes, arena.gpu.multiprocessors)[0], 2


def check_reduce(row: DType, op: str, arena: Arena, rng: np.random.Generator, most: int = 8) -> Iterator[str]:
    """`most`: operands; of more than 8 the kernel is another one."""
    part = row.itemsize // (2 if row.kind in ("complex", "pair") else 1)
    few, kernel = most <= launch.RANKS, catalogue.reduce(row.name, op)
    kernel, given = (kernel, launch.pointers) if few else (catalogue.many(kernel), launch.ways)
    for turn, count in enumerate((*LENGTHS, 4099, 30011)):
        for offset in (0, part):
            k = (1, 2, 3, 4, 5, 8, 6, 2)[turn] if few else most - turn
            xs = [samples(row, count, rng) for _ in range(k)]
            want = xs[0].copy()
            if k > 1:
                reduce.reduce_arrays(want, xs, op)
            arena.clear()
            spots = [arena.put(x, offset) for x in xs]
            out = spots[turn % k] if turn % 2 and offset else arena.room(want.nbytes, offset * (turn % 3 > 0))
            grid = _grids(arena, want.nbytes)[turn % 2]
            arena.run(kernel, grid, given([s.address for s in spots]), out.address, count, k)
            wrong = arena.wrong((out, row, want))
            yield f"{count} elements, k={k}, offset {offset}: {wrong}" if wrong else ""


def check_scale(row: DType, arena: Arena, rng: np.random.Generator) -> Iterator[str]:
    part = row.itemsize // (2 if row.kind == "complex" else 1)
    for turn, count in enumerate(LENGTHS):
        for factor in FACTORS:
            x = samples(row, count, rng)
            want = np.empty_like(x)
            with np.errstate(all="ignore"):
                reduce.scale_array(want, x, factor)
            arena.clear()
            given = arena.put(x, part * (turn % 2))
            out = given if turn % 3 == 0 else arena.room(x.nbytes, part * (turn % 2))
            grid = _grids(arena, x.nbytes)[turn % 2]
            arena.run(catalogue.scale(row.name), grid, out.address, given.address, count, factor)
            wrong = arena.wrong((out, row, want))
            yield f"{count} elements, factor {factor}: {wrong}" if wrong else ""


def check_cast(source: str, target: str, arena: Arena, rng: np.random.Generator) -> Iterator[str]:
    one, other = by_name(source), by_name(target)
    for count in (*LENGTHS, 65536):
        x = samples(one, count, rng)
        if count == 65536 and target != "float32":  # ties, and the ends of the small format
            edges = np.arange(65536).astype(f"u{other.itemsize}").view(dtype_of(other)).astype("f4")
            x = (edges.view("u4") + rng.integers(-1, 2, count).astype("u4") + (1 << 12)).view("f4")
        for scale, offset in ((1.0, 0), (0.37, 1)):
            with np.errstate(all="ignore"):
                want = (x.astype(np.float32) * np.float32(scale)).astype(dtype_of(other))
            arena.clear()
            given, out = arena.put(x, offset * one.itemsize), arena.room(want.nbytes, offset * other.itemsize)
            grid = _grids(arena, x.nbytes)[offset]
            arena.run(catalogue.cast(source, target), grid, out.address, given.address, count, scale)
            wrong = arena.wrong((out, other, want))
            yield f"{count} elements, scale {scale}: {wrong}" if wrong else ""


def _uneven(count: int, rng: np.random.Generator) -> Array:
    """Normal numbers, of another size in each block of 64."""
    x = rng.standard_normal(count) * 10.0 ** np.repeat(rng.integers(-6, 4, count // 64 + 1), 64)[:count]
    x[: min(count, 20)] = 0
    return x.astype(np.float32)


def _encoded(codec: Codec, x: Array) -> Array:
    return codec.encode(x, KEY)


def check_encode(codec: Codec, arena: Arena, rng: np.random.Generator) -> Iterator[str]:
    for turn, count in enumerate(FLOATS):
        x = _uneven(count, rng)
        want = _encoded(codec, x)
        arena.clear()
        given, out = arena.put(x, 4 * (turn % 3)), arena.room(want.nbytes, 4 * (turn % 2))
        values = out.address, given.address, count, 1.0, KEY, 0
        arena.run(catalogue.coders(codec).encode, _grids(arena, x.nbytes)[turn % 2], *values)
        wrong = arena.wrong((out, by_name("uint8"), want))
        yield f"{count} elements: {wrong}" if wrong else ""


def check_decode(codec: Codec, arena: Arena, rng: np.random.Generator) -> Iterator[str]:
    for turn, count in enumerate(FLOATS):
        x = _uneven(count, rng)
        x[count // 2] = np.inf if turn % 2 else np.nan
        wire, want = _encoded(codec, x), np.empty_like(x)
        reduce.decode_array(want, wire, codec)
        arena.clear()
        given, out = arena.put(wire, 4 * (turn % 3)), arena.room(want.nbytes, 4 * (turn % 2))
        values = out.address, given.address, count, 1.0
        arena.run(catalogue.coders(codec).decode, _grids(arena, x.nbytes)[turn % 2], *values)
        wrong = arena.wrong((out, by_name("float32"), want))
        yield f"{count} elements: {wrong}" if wrong else ""


def check_fold(codec: Codec, arena: Arena, rng: np.random.Generator) -> Iterator[str]:
    for turn, count in enumerate(FLOATS):
        k = (2, 3, 4, 8, 9, 16, 33)[turn]
        wires = [_encoded(codec, _uneven(count, rng)) for _ in range(k)]
        want = np.empty_like(wires[0])
        reduce.fold_arrays(want, wires, codec, count, KEY)
        arena.clear()
        spots = [arena.put(wire, 4 * (j % 3)) for j, wire in enumerate(wires)]
        out = spots[turn % k] if turn % 2 else arena.room(want.nbytes)
        values = launch.ways([spot.address for spot in spots]), out.address, count, k, KEY, 0
        arena.run(catalogue.coders(codec).fold, _grids(arena, 4 * count)[turn % 2], *values)
        wrong = arena.wrong((out, by_name("uint8"), want))
        yield f"{count} elements, k={k}: {wrong}" if wrong else ""


def check_kept(codec: Codec, arena: Arena, rng: np.random.Generator, sums: bool = False) -> Iterator[str]:
    """A kernel leaves what encoding loses, and adds what was lost before; `sums`: that of sums."""
    kernel = catalogue.keepers(codec)[sums]
    for turn, count in enumerate(FLOATS):
        xs = [_uneven(count, rng) for _ in range(3)]
        wires, left = [_encoded(codec, x) for x in xs], np.empty_like(xs[0])
        before = None if turn % 3 == 0 else xs[1] * np.float32(0.1)
        want = codec.encode(xs[0], KEY, (before, left))
        if sums:
            reduce.fold_arrays(want, wires, codec, count, KEY, (before, left))
        arena.clear()
        spots = [arena.put(x, 4 * (j % 3)) for j, x in enumerate(wires if sums else xs)]
        owed = None if before is None else arena.put(before, 4 * (turn % 4))
        out, after = arena.room(want.nbytes, 4 * (turn % 2)), owed or arena.room(left.nbytes, 4 * (turn % 3))
        given = launch.ways([spot.address for spot in spots]) if sums else out.address
        values = (given, out.address, count, 3) if sums else (given, spots[0].address, count)
        places = (owed.address if owed else 0), after.address
        arena.run(kernel, _grids(arena, 4 * count)[turn % 2], *values, KEY, 0, *places)
        wrong = arena.wrong((out, by_name("uint8"), want), (after, by_name("float32"), left))
        yield f"{count} elements: {wrong}" if wrong else ""


def check_copy(arena: Arena, rng: np.random.Generator) -> Iterator[str]:
    sizes = [0, 1, 15, 16, 17, 4096, 3 * launch.PIECE + 5, 0, launch.PIECE, 33, 0, 100_001, 2]
    for skew in (0, 4, 1):
        arena.clear()
        data = [rng.integers(0, 256, n, dtype=np.uint8) for n in sizes]
        given = [arena.put(x, int(rng.integers(0, 17))) for x in data]
        outs = [arena.room(len(x), (skew + g.start) % 16) for x, g in zip(data, given, strict=True)]
        rows = [(g.address, out.address, g.nbytes) for g, out in zip(given, outs, strict=True)]
        segments, pieces = launch.segment_table(rows)
        arena.run(catalogue.COPY, 4, arena.put(segments).address, len(segments), pieces)
        wrong = arena.wrong(*((out, by_name("uint8"), x) for out, x in zip(outs, data, strict=True)))
        yield f"skew {skew}: {wrong}" if wrong else ""


def check_checksum(arena: Arena, rng: np.random.Generator) -> Iterator[str]:
    for count in (0, 1, 8, 13, 1000, 4099):
        for grid, offset in ((1, 0), (3, 0), (2, 3)):
            x = rng.integers(0, 256, count, dtype=np.uint8)
            arena.clear()
            given, out = arena.put(x, offset), arena.put(np.zeros(1, np.uint64))
            arena.run(catalogue.CHECKSUM, grid, given.address, count, out.address)
            wrong = arena.wrong((out, by_name("uint64"), np.array([checksum(x.tobytes())], np.uint64)))
            yield f"{count} bytes, grid {grid}: {wrong}" if wrong else ""


Check = Callable[[Arena, np.random.Generator], Iterator[str]]


def checks() -> Iterator[tuple[str, Kernel, Check]]:
    """(family, kernel, its check)."""
    for row in DTYPES:
        for op in ops.OPS:
            if row.kind in op.kinds:
                kernel = catalogue.reduce(row.name, op.name)
                yield "reduce", kernel, partial(check_reduce, row, op.name)
                yield "reduce", catalogue.many(kernel), partial(check_reduce, row, op.name, most=33)
        if row.kind in ("int", "uint", "float", "complex"):
            yield "scale", catalogue.scale(row.name), partial(check_scale, row)
    for small in SMALL:
        for ends in (("float32", small), (small, "float32")):
            yield "cast", catalogue.cast(*ends), partial(check_cast, *ends)
    for codec in CODED:
        for kernel, test in zip(catalogue.coders(codec), (check_encode, check_decode, check_fold), strict=True):
            yield "codecs", kernel, partial(test, codec)
        for sums, kernel in enumerate(catalogue.keepers(codec)):
            yield "codecs", kernel, partial(check_kept, codec, sums=bool(sums))
    yield "copy", catalogue.COPY, check_copy
    yield "checksum", catalogue.CHECKSUM, check_checksum


# ------------------------------------------------------------------------------------------------ the part


def _compiled(module: Module, arch: int) -> tuple[Module, bytes]:
    text, options = module_source(module)
    return module, nvrtc.compile(text, options, arch, module.file)[0]


def compile_all(gpu: Gpu, kernels: Sequence[Kernel]) -> int:
    """By as many processes as there are cores: within a process the compiler runs one at a time.

    Returns how many modules were not compiled in time.  Where there are too few to share out, it compiles none.
    """
    modules = list(dict.fromkeys(kernel.module for kernel in kernels))
    arch = 10 * gpu.device.capability[0] + gpu.device.capability[1]
    workers = min(usable_cores(), len(modules) // 8)
    if workers > 1:
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
        waiting = [pool.submit(_compiled, module, arch) for module in modules]
        with contextlib.suppress(TimeoutError):
            for done in as_completed(waiting, PATIENCE):
                module, image = done.result()
                gpu.images[module] = image
        pool.shutdown(wait=False, cancel_futures=True)
        return len(modules) - len(gpu.images)
    return 0


def check(options: Options) -> Iterator[Finding]:
    gpu = Gpu()
    wanted = [each for each in checks() if not options.quick or QUICK.fullmatch(each[1].name)]
    start = time.monotonic()
    late = compile_all(gpu, [kernel for _, kernel, _ in wanted])
    note = f"{late} modules were not compiled in time: their kernels are not checked" if late else ""
    yield Finding(f"{len(gpu.images)} modules compiled beforehand", time.monotonic() - start, "s", note=note)
    if late:
        wanted = [each for each in wanted if each[1].module in gpu.images]
    left = {kernel.name for kernel in catalogue.catalogue() if not kernel.name.startswith(MEETINGS)}
    left -= {kernel.name for _, kernel, _ in checks()}
    yield Finding("kernels of the catalogue without a check", len(left), ok=not left, note=", ".join(sorted(left)))
    arena, rng = Arena(gpu), np.random.default_rng(2026)
    for family in dict.fromkeys(each[0] for each in wanted):
        kernels = launches = 0
        failed = []
        for _, kernel, test in (each for each in wanted if each[0] == family):
            found = list(test(arena, rng))
            kernels, launches = kernels + 1, launches + len(found)
            failed += [f"{kernel.name}, {wrong}" for wrong in found if wrong][:1]
        note = "; ".join(failed[:5])
        name = f"{family}: {kernels} kernels, {launches} launches"
        yield Finding(name, f"{len(failed)} wrong", ok=not failed, note=note)
