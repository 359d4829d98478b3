"""Which algorithms keep what encodings lose: those whose plans leave each loss in one place, and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from hocket.algorithms import CONTRACTS, Algorithm, get, hierarchical, names
from hocket.algorithms.proof.residuals import _walked, keeps_residuals
from hocket.algorithms.proof.rounding import numbers
from hocket.collectives.calls.residuals import COLLECTIVES
from hocket.collectives.plans.instr import (
    AFTER,
    IN,
    OUT,
    OWNED_AFTER,
    Apply,
    ChunkLayout,
    Elements,
    Instr,
    Residuals,
    Wires,
)  # fmt: skip
from hocket.collectives.plans.lower import lower
from hocket.kernels.dtypes import by_name
from support.cases import each

FLOAT32 = by_name("float32")
PLAIN, CODED = 1024, 260
"""Bytes of a chunk of one block, as floats and as an element of int8."""
GROUPS = {2: ((0,), (1,)), 3: ((0, 2), (1,)), 5: ((0, 1), (2, 3, 4)), 8: ((0, 1, 2), (3, 4), (5, 6, 7))}
ALL = [get(collective, name) for collective in COLLECTIVES for name in names(collective)]
BETWEEN_HOSTS = [
    hierarchical(collective, groups, outer=outer)
    for groups in GROUPS.values() for collective in ("allreduce", "reduce_scatter", "allgather")
    for outer in names(collective) if not get(collective, outer).requires(len(groups))
]  # fmt: skip


def between_hosts(algorithm: Algorithm) -> bool:
    """Is the first encoding that of a host's sum?"""
    return algorithm.far is not None and CONTRACTS[algorithm.collective].reduces


def plan(algorithm: Algorithm, rank: int, size: int) -> list[Instr]:
    chunks = algorithm.chunks(size)
    layout = ChunkLayout(
        [CODED] * chunks, lambda c: (IN, c * PLAIN), lambda c: (OUT, c * PLAIN), [256] * chunks, [PLAIN] * chunks,
        Residuals(lambda c: c * PLAIN, own=True, sums=True),
    )  # fmt: skip
    far = algorithm.far(size) if between_hosts(algorithm) else None
    elements = Elements(Apply(taken=FLOAT32), Apply(made=FLOAT32), far=far, numbers=numbers(algorithm, rank, size))
    made = lower(algorithm, rank, size, 0, layout, Wires(join=False), elements)
    return [instr for step in made.steps for instr in step]


def check(algorithm: Algorithm, size: int) -> bool:
    sums: list[tuple[int, int, int]] = []
    for rank in range(size):
        instrs, contract = plan(algorithm, rank, size), CONTRACTS[algorithm.collective]
        left = Counter(
            (at, instr.encoded)
            for instr in instrs if instr.residual and instr.residual.after == AFTER for at in instr.residual.at
        )  # fmt: skip
        brought = [c * PLAIN for c in range(algorithm.chunks(size)) if contract.holds(rank, size, 0, c)]
        assert {at for at, encoded in left if encoded != between_hosts(algorithm)} == set(brought)
        assert set(left.values()) == {1}, "an element of x has no residual, or two"
        for instr in instrs:
            if instr.residual and instr.residual.after == OWNED_AFTER:
                assert instr.kind == "reduce" and instr.encoded and instr.dice
                sums += [(rank, at, dice) for at, dice in zip(instr.residual.at, instr.dice, strict=True)]
    once = len({(rank, at) for rank, at, _ in sums}) == len(sums) == len({dice for *_, dice in sums})
    assert keeps_residuals(algorithm, size) == once
    return once


@each("algorithm", ALL)
def test_a_loss_is_kept_in_one_place_or_the_algorithm_is_refused(algorithm: Algorithm) -> None:
    fit = {size for size in range(1, 10) if not algorithm.requires(size) and check(algorithm, size)}
    assert 1 in fit
    if algorithm.name == "direct" or not CONTRACTS[algorithm.collective].reduces:
        assert fit >= {2, 3, 4, 8}
    if algorithm.name in ("recursive_doubling", "one_shot") and algorithm.collective == "allreduce":
        assert fit == {1}


@pytest.mark.parametrize("sizes", [(*range(3, 18), 33), pytest.param(range(16, 33), marks=pytest.mark.more)], ids=str)
@each("algorithm", ALL)
def test_some_ranks_tell_of_many(algorithm: Algorithm, sizes: Iterable[int]) -> None:
    sizes = [size for size in sizes if not algorithm.requires(size)]
    assert 16 in sizes and len({_walked(algorithm, size) for size in sizes}) == 1


def test_many_ranks_on_hosts_are_walked_as_they_are() -> None:
    groups = tuple(tuple(range(8 * host, 8 * host + 8)) for host in range(4))
    assert keeps_residuals(hierarchical("allreduce", groups, outer="direct"), 32)
    assert not keeps_residuals(hierarchical("allreduce", groups, outer="recursive_doubling"), 32)


@each("algorithm", BETWEEN_HOSTS)
def test_between_hosts_only_their_sums_count(algorithm: Algorithm) -> None:
    size = next(size for size in GROUPS if not algorithm.requires(size))
    check(algorithm, size)
    if algorithm.collective == "allreduce":
        for group in GROUPS[size]:
            encoded = [
                at for rank in group for instr in plan(algorithm, rank, size)
                if instr.kind == "apply" and instr.encoded and instr.residual for at in instr.residual.at
            ]  # fmt: skip
            assert len(encoded) == len(set(encoded)) == algorithm.chunks(size), "not one rank encodes the host's sum"
