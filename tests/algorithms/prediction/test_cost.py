"""The walk with clocks agrees with the closed forms of the literature."""

from __future__ import annotations

from math import ceil, log2

import pytest

from hocket.algorithms import CONTRACTS, cost, get, names
from hocket.algorithms.language.registry import Algorithm
from hocket.errors import ArgumentError

N, A, B, G = 1 << 20, 5e-6, 1 / 1.25e9, 1 / 5e9

CLOSED = {
    ("allreduce", "ring"): lambda p: 2 * (p - 1) * (A + N / p * B) + (p - 1) * N / p * G,
    ("allreduce", "one_shot"): lambda p: (p - 1) * (A + N * B + N * G),
    ("allreduce", "direct"): lambda p: 2 * (p - 1) * (A + N / p * B) + (p - 1) * N / p * G,
    ("reduce_scatter", "ring"): lambda p: (p - 1) * (A + N / p * B + N / p * G),
    ("allgather", "ring"): lambda p: (p - 1) * (A + N / p * B),
    ("allgather", "bruck"): lambda p: ceil(log2(p)) * A + (p - 1) / p * N * B,
    ("allgather", "pat"): lambda p: ceil(log2(p)) * A + (p - 1) / p * N * B,
    ("broadcast", "chain"): lambda p: (p - 1) * (A + N * B),
    ("broadcast", "direct"): lambda p: (p - 1) * (A + N * B),
    ("reduce", "direct"): lambda p: A + (p - 1) * N * (B + G),
    ("alltoall", "pairwise"): lambda p: (p - 1) * (A + N / p * B),
}

POWERS = {
    ("allreduce", "recursive_doubling"): lambda p: log2(p) * (A + N * B + N * G),
    ("allreduce", "halving_doubling"): lambda p: 2 * log2(p) * A + (p - 1) / p * N * (2 * B + G),
    ("allreduce", "tree"): lambda p: log2(p) * (2 * A + N * (2 * B + G)),
    ("broadcast", "binomial"): lambda p: log2(p) * (A + N * B),
    ("broadcast", "scatter_allgather"): lambda p: 2 * log2(p) * A + 2 * (p - 1) / p * N * B,
    ("scatter", "binomial"): lambda p: log2(p) * A + (p - 1) / p * N * B,
    ("alltoall", "bruck"): lambda p: log2(p) * (A + N / 2 * B),
}


@pytest.mark.parametrize(("collective", "name"), CLOSED)
def test_any_size(collective: str, name: str) -> None:
    for size in (2, 3, 5, 8, 13, 16, 32):
        walked = cost(get(collective, name), size, N, A, B, G)
        assert walked == pytest.approx(CLOSED[collective, name](size), rel=1e-9), size


@pytest.mark.parametrize(("collective", "name"), POWERS)
def test_powers_of_two(collective: str, name: str) -> None:
    for size in (2, 4, 8, 16, 64):
        walked = cost(get(collective, name), size, N, A, B, G)
        assert walked == pytest.approx(POWERS[collective, name](size), rel=1e-9), size


def test_pipelined_chain() -> None:
    """p-2+k steps of n/k bytes; the rank in the middle receives one segment while it sends another."""
    for size, segments in ((2, 1), (4, 8), (9, 32)):
        walked = cost(get("broadcast", "chain"), size, N, A, B, G, segments=segments)
        assert walked == pytest.approx((size - 2 + segments) * (A + N / segments * B), rel=1e-9)


def test_one_rank_costs_nothing_and_everything_else_something() -> None:
    for collective in CONTRACTS:
        for name in names(collective):
            assert cost(get(collective, name), 1, N, A, B, G) == 0
            assert cost(get(collective, name), 6, N, A, B, G) > 0


def test_each_constant_counts() -> None:
    ring = get("allreduce", "ring")
    assert cost(ring, 4, N, 1, 0, 0) == 6
    assert cost(ring, 4, 400, 0, 1, 0) == 600
    assert cost(ring, 4, 400, 0, 0, 1) == 300


def test_thousands_of_ranks() -> None:
    assert cost(get("allreduce", "recursive_doubling"), 4096, 8, 1, 0, 0) == 12


def test_refused_size() -> None:
    ring = get("allreduce", "ring")
    with pytest.raises(ArgumentError, match="allreduce odd does not run with 3 ranks: too odd"):
        cost(Algorithm("allreduce", "odd", ring.steps, ring.chunks, requires=lambda p: "too odd"), 3, N, A, B, G)
