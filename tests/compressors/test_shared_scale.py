"""Sums as whole numbers with one scale: exact but for the rounding, which is right in the mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import Compressor, SharedScale
from hocket.compression.shared_scale import Fields
from hocket.errors import ArgumentError
from support.worlds import spread

DRAWS = 300


def normal(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([rank, count]).standard_normal(count).astype(np.float32)


def the_mean_is_that_of_what_was_cut_off(comm: Communicator) -> None:
    """Within what chance does: an average of p codes with a step of scale / levels has a variance below step^2 / 4p."""
    every = [normal(r, 300) * (r + 1) for r in range(comm.size)]
    for levels, clip in ((1, 2.5), (1, math.inf), (7, 2.5)):
        most = max(min(np.abs(x).max(), clip * math.sqrt(np.square(x, dtype=float).mean())) for x in every)
        right = np.mean([np.clip(x, -most, most) for x in every], 0, dtype=float)
        c, came = Compressor(comm, SharedScale(levels, clip)), np.zeros(300)
        for _ in range(DRAWS):
            came += c.allreduce(every[comm.rank].copy(), "w")
        z = (came / DRAWS - right) / (most / levels / 2 / math.sqrt(comm.size * DRAWS))
        assert np.abs(z).max() < 5, (levels, clip)
        assert np.abs(z).max() > 0.5, "nothing was rounded"


def what_needs_no_rounding_is_exact(comm: Communicator) -> None:
    """Multiples of the step: the ranks' sum is that of the whole numbers."""
    p = comm.size
    whole = [np.random.default_rng(r).integers(-7, 8, 1001).astype(np.float32) for r in range(p)]
    for x in whole:
        x[0], x[1] = 7, -7  # the largest sum that the fields must hold, and the smallest
    x = Compressor(comm, SharedScale(7, math.inf)).allreduce(whole[comm.rank] * np.float32(0.25), "w", "sum")
    np.testing.assert_allclose(x, np.sum(whole, 0) * 0.25, rtol=1e-6)


def the_bits(comm: Communicator) -> None:
    """The sum takes as many bits as it may need, in words of 64."""
    c, p = Compressor(comm, "shared:1"), comm.size
    c.allreduce(normal(comm.rank, 64_000), "w")
    each = 64 // (2 * p).bit_length()
    assert c.stats("w").sent == 8 * -(-64_000 // each) + 4
    assert c.stats("w").ratio > 7


def what_has_no_scale(comm: Communicator) -> None:
    """Zeros, subnormal numbers, and nothing at all."""
    for x in (np.zeros(9, np.float32), np.full(9, 1e-45, np.float32), np.zeros(0, np.float32)):
        y = Compressor(comm, "shared:1").allreduce(x.copy(), "w")
        assert np.abs(y - x).sum() <= 2e-44


CHECKS: tuple[Callable[[Any], None], ...] = (
    the_mean_is_that_of_what_was_cut_off, what_needs_no_rounding_is_exact, the_bits, what_has_no_scale,
)  # fmt: skip


@pytest.mark.parametrize(("size", "transport"), [pytest.param(2, "shm", marks=pytest.mark.more), (3, "tcp")])
def test_between_ranks(size: int, transport: str) -> None:
    spread(CHECKS, size, transport)


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_many_ranks_do_not_overflow_their_fields(levels: int) -> None:
    for size in (2, 3, 7, 8, 15, 16, 100, 258, 259, 600):
        fields = Fields((2 * levels * size).bit_length())
        codes = [np.random.default_rng(r).integers(0, 2 * levels + 1, 500).astype(fields.kind) for r in range(size)]
        for code in codes:
            code[:40] = 2 * levels
        out = np.empty(500, fields.kind)
        fields.unpack(np.sum([fields.packed(code) for code in codes], 0, dtype=np.uint64), out)
        assert np.array_equal(out, np.sum(codes, 0))


@pytest.mark.parametrize("size", [258, 259, 70_000])
def test_more_ranks_than_16_bits_hold_the_sum_of(size: int) -> None:
    """An average of ones is one: codes of the largest kind, from ranks that are alike."""

    class Alike:
        rank = 0

        def __init__(self) -> None:
            self.size = size

        def allreduce(self, x: Any, op: str) -> Any:
            return x * np.uint64(size) if op == "sum" else x

    x = Compressor(Alike(), SharedScale(127, math.inf)).allreduce(np.array([1, -1, 1] * 4, np.float32), "w")
    np.testing.assert_allclose(x, [1, -1, 1] * 4, rtol=1e-6)


class By:
    """A communicator whose sums have this algorithm."""

    def __init__(self, comm: Communicator, algorithm: str) -> None:
        self.comm, self.algorithm, self.rank, self.size = comm, algorithm, comm.rank, comm.size

    def allreduce(self, x: Any, op: str) -> Any:
        return self.comm.allreduce(x, op, algorithm=self.algorithm)


def test_the_algorithm_does_not_matter() -> None:
    """Sums of whole numbers have one value; those of floats have one for each order."""

    def run(comm: Communicator) -> list[bytes]:
        every = (By(comm, algorithm) for algorithm in ("ring", "tree", "direct"))
        return [Compressor(by, "shared:7").allreduce(normal(comm.rank, 5000), "w").tobytes() for by in every]

    assert len({bits for found in hocket.local_world(3).run(run) for bits in found}) == 1


def test_bad_parameters_are_told() -> None:
    for wrong, text in (
        ({"levels": 0}, "levels=0 must be 1 to 127"), ({"levels": 128}, "levels=128"), ({"clip": 0}, "clip=0 must be"),
        ({"clip": math.nan}, "clip=nan"), ({"seed": -1}, "seed=-1"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=text):
            SharedScale(**wrong)  # type: ignore[arg-type]
