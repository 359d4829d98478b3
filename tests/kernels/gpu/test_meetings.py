"""The CUDA kernels that wait for each other, emulated: the ranks of several GPUs side by side, in random order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hocket.conformance import oracle
from hocket.kernels.cpu import reduce
from hocket.kernels.dtypes import DType, by_name
from hocket.kernels.gpu import catalogue, launch
from hocket.kernels.gpu.catalogue import Kernel
from hocket.kernels.ops import OPS
from support.gpu.emulation import DEADLOCK, OK, Buffer, Emulator

pytestmark = pytest.mark.gpu
Array = np.ndarray[Any, Any]
BLOCK = 32
ROUNDS = 3
FOREVER = 2**60
CASES = [(row, op.name) for row in oracle.ROWS for op in OPS if row.kind in op.kinds]


class Ranks:
    """One GPU per rank: its windows, flags and stream.  Tables of copies live as long as this."""

    def __init__(self, emulator: Emulator, world: int, nbytes: int, grid: int = 2, limit_ns: int = FOREVER) -> None:
        self.emulator, self.world, self.grid, self.limit_ns = emulator, world, grid, limit_ns
        self.windows = [[Buffer(launch.blocks_bytes(nbytes, world)) for _ in range(world)] for _ in range(2)]
        self.scratches = [Buffer(launch.scratch_bytes(nbytes, world)) for _ in range(world)]
        self.flags = [Buffer(launch.FLAG_BYTES, fill=0) for _ in range(world)]
        self.words = [Buffer(12, fill=0) for _ in range(world)]  # status; the host's two
        self.epoch = 0
        self.kept: list[Array] = []

    def peers(self, rank: int) -> launch.Peers:
        flags = launch.pointers([buffer.address for buffer in self.flags]).at
        words = self.words[rank].address
        return launch.Peers(flags, words, words + 4, self.limit_ns, self.epoch, rank, self.world)

    def copy(self, source: int, target: int, nbytes: int, stream: int) -> None:
        table, pieces = launch.segment_table([(source, target, nbytes)])
        self.kept.append(table)
        self.submit(catalogue.COPY, stream, table.ctypes.data, 1, pieces)

    def submit(self, kernel: Kernel, stream: int, *values: Any) -> None:
        assert self.emulator.submit(kernel, self.grid, BLOCK, *values, stream=stream) == OK

    def inputs(self) -> launch.Pointers:
        return launch.pointers([buffer.address for buffer in self.windows[self.epoch % 2]])

    def status(self) -> list[int]:
        found = [words.as_array(np.uint32) for words in self.words]
        assert all(words[0] == words[2] for words in found), "the host is told"
        return [int(words[0]) for words in found]


def submit_collective(
    ranks: Ranks, name: str, row: DType, op: str, x: int, out: Buffer, rank: int, count: int
) -> None:
    """`x`: the address of rank's `count` elements."""
    peers, inputs, shots = ranks.peers(rank), ranks.inputs(), catalogue.shots(row.name, op)
    if name == "one shot":
        ranks.submit(shots.one_shot, rank, peers, inputs, x, out.address, count)
    elif name == "two shots":
        scratches = launch.pointers([buffer.address for buffer in ranks.scratches])
        ranks.submit(shots.two_shot, rank, peers, inputs, scratches, x, out.address, count)
    elif name == "reduce_scatter":
        ranks.submit(shots.reduce_scatter, rank, peers, inputs, x, out.address, count // ranks.world)
    else:
        ranks.submit(catalogue.ALLGATHER, rank, peers, inputs, x, out.address, count * row.itemsize)


def expected(name: str, xs: list[Array], op: str, rank: int) -> Array:
    if name == "allgather":
        return np.concatenate(xs)
    whole = np.empty_like(xs[0])
    reduce.reduce_arrays(whole, xs, op)
    if name == "reduce_scatter":
        each = len(whole) // len(xs)
        return whole[each * rank : each * (rank + 1)]
    return whole


def run_rounds(ranks: Ranks, name: str, row: DType, op: str, count: int, seed: int, offset: int = 0) -> None:
    """Each rank, ROUNDS times on its stream: fill x, call, take the result away; in place, where it may be."""
    rng = np.random.default_rng(seed)
    rounds = [[oracle.samples(row, count, rng) for _ in range(ranks.world)] for _ in range(ROUNDS)]
    checks: list[tuple[Buffer, Array]] = []
    for xs in rounds:
        ranks.epoch = (ranks.epoch + 1) % 2**32
        for rank, x in enumerate(xs):
            want = expected(name, xs, op, rank)
            out, kept = Buffer(want.nbytes, offset), Buffer(want.nbytes)
            given = out if want.nbytes == x.nbytes and seed % 2 else Buffer(x.nbytes, offset)
            ranks.kept += [x, out.bytes, given.bytes]
            ranks.copy(x.ctypes.data, given.address, x.nbytes, rank)
            submit_collective(ranks, name, row, op, given.address, out, rank, count)
            ranks.copy(out.address, kept.address, want.nbytes, rank)
            checks += [(out, want), (kept, want)]
    assert ranks.emulator.run(seed) == OK
    assert ranks.status() == [0] * ranks.world
    for buffer, want in checks:
        assert oracle.same(buffer.as_array(want.dtype), want).all() and buffer.is_intact()
    own = *ranks.windows[0], *ranks.windows[1], *ranks.scratches, *ranks.flags, *ranks.words
    assert all(buffer.is_intact() for buffer in own)


@pytest.mark.parametrize("name", ["one shot", "two shots", "reduce_scatter", "allgather"])
@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_rounds_in_any_order(emulator: Emulator, name: str, world: int) -> None:
    for seed, (dtype, count) in enumerate([("bfloat16", 1500), ("float32", 257), ("int8", 5), ("complex128", 99)]):
        row = by_name(dtype)
        run_rounds(Ranks(emulator, world, count * row.itemsize), name, row, "sum", count, seed)


@pytest.mark.parametrize(("row", "op"), CASES, ids=str)
def test_every_pair_goes_in_two_shots(emulator: Emulator, row: DType, op: str) -> None:
    run_rounds(Ranks(emulator, 2, 77 * row.itemsize, grid=1), "two shots", row, op, 77, row.code, offset=16)


def test_results_may_lie_anywhere(emulator: Emulator) -> None:
    """Ranks then fetch by different words; who wrote what must not depend on it."""
    for offset in (1, 4, 6):
        run_rounds(Ranks(emulator, 3, 3001), "two shots", by_name("uint8"), "max", 3001, offset, offset)
        run_rounds(Ranks(emulator, 3, 1001), "allgather", by_name("uint8"), "max", 1001, offset, offset)


def test_epochs_may_wrap(emulator: Emulator) -> None:
    for seed in range(6):  # a meeting that is passed too early must also be noticed
        ranks = Ranks(emulator, 8, 4000)
        ranks.epoch = 2**32 - 2
        for flags in ranks.flags:
            flags.as_array(np.uint32)[:] = ranks.epoch
        run_rounds(ranks, "two shots", by_name("float32"), "sum", 1000, seed)
        assert ranks.epoch == 1


def barriers(ranks: Ranks, streams: list[int]) -> int:
    """Every rank's barrier, each on the stream it is given; what became of them."""
    ranks.epoch += 1
    ranks.grid = 1
    for rank, stream in enumerate(streams):
        ranks.submit(catalogue.BARRIER, stream, ranks.peers(rank))
    return ranks.emulator.run(1)


def test_a_barrier_lets_nobody_through_alone(emulator: Emulator) -> None:
    assert barriers(Ranks(emulator, 8, 16), list(range(8))) == OK
    assert barriers(Ranks(emulator, 2, 16), [0, 0]) == DEADLOCK, "one after the other, and no limit"


def test_gives_up_in_time(emulator: Emulator) -> None:
    """Ranks of one GPU without overlap: the first waits in vain, and nothing it wrote is a result."""
    row = by_name("float32")
    ranks = Ranks(emulator, 3, 400, limit_ns=2_000_000)
    ranks.epoch += 1
    x, outs = Buffer(400), [Buffer(400), Buffer(400), Buffer(400)]
    for rank, out in enumerate(outs):
        submit_collective(ranks, "two shots", row, "sum", x.address, out, rank, 100)
        if rank < 2:  # the launches of a stream do not overlap
            assert emulator.run(1) == OK
    status = ranks.status()
    assert status[0] >> 16 == launch.TIMED_OUT and status[0] >> 8 & 255 == 0 and status[0] & 255 in (1, 2)
    assert launch.explain_status(status[0]) == f"no sign in time from rank {status[0] & 255} in phase 0"
    assert launch.explain_status(0) == ""
    assert (outs[0].bytes == 0xA5).all(), "a block that gave up must not touch its result"
    assert emulator.run(1) == OK
    before = ranks.status()[0]
    assert barriers(ranks, [0, 0, 0]) == OK, "a rank that gave up returns at once"
    assert ranks.status()[0] == before
    assert ranks.flags[2].as_array(np.uint32).reshape(2, 64, 8)[0, 0, 0] == 1, "and signals nothing more"


def test_the_abort_word_releases(emulator: Emulator) -> None:
    """Set while all wait, by a copy on another stream."""
    ranks = Ranks(emulator, 2, 16)
    ranks.epoch += 1
    ranks.grid = 1
    ranks.submit(catalogue.BARRIER, 0, ranks.peers(0))
    one = np.ones(1, np.uint32)
    ranks.copy(one.ctypes.data, ranks.words[0].address + 4, 4, stream=7)
    assert emulator.run(3) == OK
    assert ranks.status()[0] == launch.ABORTED << 16 | 1
    assert launch.explain_status(ranks.status()[0]) == "aborted while waiting for a sign from rank 1 in phase 0"


def test_geometry_fits_the_flags() -> None:
    for nbytes in (0, 1, 2**20, 2**40):
        for processors in (1, 40, 132):
            grid, block = launch.meeting_geometry(nbytes, processors)
            assert 1 <= grid <= min(processors, launch.FLAG_BLOCKS) and block % 32 == 0
            grid, block = launch.geometry(nbytes, processors)
            assert 1 <= grid <= max(1, math.ceil(nbytes / (16 * block)))
