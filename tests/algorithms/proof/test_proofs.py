"""Every registered algorithm is proven, for every size and root; and its docstring's law is held to."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hocket.algorithms import CONTRACTS, Algorithm, Send, get, ids, names, verify
from hocket.algorithms import pat as pat_module
from hocket.algorithms.proof.verify import verify_steps
from hocket.errors import ScheduleError
from support.cases import each

ALL = [get(collective, name) for collective in CONTRACTS for name in names(collective)]
SMALL, LARGE = range(1, 10), (13, 16, 33)
BETWEEN, LARGER = range(10, 34), (64, 100, 127)


def label(algorithm: Algorithm) -> str:
    return f"{algorithm.collective}-{algorithm.name}"


def roots(algorithm: Algorithm, size: int, few: bool = False) -> set[int]:
    if not CONTRACTS[algorithm.collective].rooted:
        return {0}
    return {0, size // 3, size - 1} if few else set(range(size))


def verify_all(algorithm: Algorithm, sizes: Iterable[int], large: Iterable[int]) -> None:
    """Every root of `sizes`, and few of `large`."""
    for size in sizes:
        for root in roots(algorithm, size):
            verify(algorithm, size, root)
    for size in large:
        for root in roots(algorithm, size, few=True):
            verify(algorithm, size, root)


@each("algorithm", ALL)
def test_every_size_and_root(algorithm: Algorithm) -> None:
    verify_all(algorithm, SMALL, LARGE)


@pytest.mark.more
@pytest.mark.parametrize("algorithm", ALL, ids=label)
def test_further_sizes_and_every_root(algorithm: Algorithm) -> None:
    verify_all(algorithm, BETWEEN, LARGER)


@each("algorithm", ALL)
def test_pipelined_over_segments(algorithm: Algorithm) -> None:
    for size in range(1, 10):
        for root in roots(algorithm, size, few=True):
            verify(algorithm, size, root, segments=3)


EXPECTED = {
    "allreduce": {
        "ring", "tree", "double_binary_tree", "recursive_doubling", "halving_doubling", "one_shot", "direct",
    },
    "reduce_scatter": {"ring", "recursive_halving", "pat", "direct"},
    "allgather": {"ring", "recursive_doubling", "bruck", "pat", "direct"},
    "broadcast": {"binomial", "chain", "scatter_allgather", "direct"},
    "reduce": {"binomial", "chain", "reduce_scatter_gather", "direct"},
    "gather": {"binomial", "direct"},
    "scatter": {"binomial", "direct"},
    "alltoall": {"pairwise", "bruck", "direct"},
    "scan": {"linear", "recursive_doubling"},
    "exscan": {"linear", "recursive_doubling"},
}  # fmt: skip


@pytest.mark.parametrize("collective", CONTRACTS)
def test_the_catalogue(collective: str) -> None:
    assert set(names(collective)) == EXPECTED[collective]


@each("algorithm", [a for a in ALL if a.order == "any"])
def test_order_any_is_not_an_understatement(algorithm: Algorithm) -> None:
    size, root = 6, 2 if CONTRACTS[algorithm.collective].rooted else 0
    with pytest.raises(ScheduleError, match="rank order is promised"):
        verify_steps(
            CONTRACTS[algorithm.collective],
            [algorithm.steps(rank, size, root) for rank in range(size)],
            chunks=algorithm.chunks(size),
            root=root,
            order="rank",
        )


def log(size: int) -> int:
    return (size - 1).bit_length()


STEPS = {
    ("allreduce", "ring"): lambda p: 2 * (p - 1),
    ("allreduce", "tree"): lambda p: 2 * log(p),
    ("allreduce", "recursive_doubling"): log,
    ("allreduce", "halving_doubling"): lambda p: 2 * log(p),
    ("allreduce", "one_shot"): lambda p: 1,
    ("allreduce", "direct"): lambda p: 2,
    ("reduce_scatter", "ring"): lambda p: p - 1,
    ("reduce_scatter", "recursive_halving"): log,
    ("reduce_scatter", "pat"): log,
    ("reduce_scatter", "direct"): lambda p: 1,
    ("allgather", "ring"): lambda p: p - 1,
    ("allgather", "recursive_doubling"): log,
    ("allgather", "bruck"): log,
    ("allgather", "pat"): log,
    ("allgather", "direct"): lambda p: 1,
    ("broadcast", "binomial"): log,
    ("broadcast", "chain"): lambda p: p - 1,
    ("broadcast", "scatter_allgather"): lambda p: 2 * log(p),
    ("broadcast", "direct"): lambda p: 1,
    ("reduce", "binomial"): log,
    ("reduce", "chain"): lambda p: p - 1,
    ("reduce", "reduce_scatter_gather"): lambda p: 2 * log(p),
    ("reduce", "direct"): lambda p: 1,
    ("gather", "binomial"): log,
    ("gather", "direct"): lambda p: 1,
    ("scatter", "binomial"): log,
    ("scatter", "direct"): lambda p: 1,
    ("alltoall", "bruck"): log,
    ("alltoall", "pairwise"): lambda p: p - 1,
    ("alltoall", "direct"): lambda p: 1,
    ("scan", "linear"): lambda p: p - 1,
    ("scan", "recursive_doubling"): log,
    ("exscan", "linear"): lambda p: p - 1,
    ("exscan", "recursive_doubling"): lambda p: 1 + log(p - 1),
}


@each("algorithm", STEPS)
def test_the_docstring_steps(algorithm: tuple[str, str]) -> None:
    for size in range(2, 33):
        assert len(list(get(*algorithm).steps(size // 2, size, 0))) == STEPS[algorithm](size), size


def sent(algorithm: Algorithm, rank: int, size: int) -> int:
    """Chunks that a rank sends, counted with repetition."""
    return sum(len(ids(op.chunks)) for step in algorithm.steps(rank, size, 0) for op in step if isinstance(op, Send))


@pytest.mark.parametrize("collective", ["reduce_scatter", "allgather"])
@pytest.mark.parametrize("name", ["ring", "pat", "direct"])
def test_optimal_bytes_on_every_rank(collective: str, name: str) -> None:
    for size in (*SMALL, *BETWEEN):
        assert {sent(get(collective, name), rank, size) for rank in range(size)} == {size - 1}


def test_halving_sends_optimal_bytes_for_powers_of_two_and_little_more_else() -> None:
    algorithm = get("allreduce", "halving_doubling")
    for size in (*SMALL, *BETWEEN):
        most = max(sent(algorithm, rank, size) for rank in range(size))
        assert most == 2 * (size - 1) if size & (size - 1) == 0 else most <= 3 * size


def test_recursive_doubling_sends_at_most_one_more_than_its_steps() -> None:
    algorithm = get("allreduce", "recursive_doubling")
    for size in (*SMALL, *BETWEEN, *LARGE):
        assert max(sent(algorithm, rank, size) for rank in range(size)) <= log(size) + 1


def test_double_tree_is_balanced_and_shallow() -> None:
    algorithm = get("allreduce", "double_binary_tree")
    for size in (*SMALL, *BETWEEN, *LARGE):
        assert max(sent(algorithm, rank, size) for rank in range(size)) <= 6  # halves: 3n bytes
        assert len(list(algorithm.steps(0, size, 0))) <= 2 * (log(size) + 1)


@pytest.mark.parametrize("sizes", [(*range(1, 18), 37), pytest.param((18, 19, 64), marks=pytest.mark.more)], ids=str)
def test_pat_bounds_its_messages_for_every_limit(sizes: Iterable[int]) -> None:
    for most in (1, 2, 4, 8):
        for size in sizes:
            programs = [list(pat_module.reduce_scatter(rank, size, most)) for rank in range(size)]
            verify_steps(CONTRACTS["reduce_scatter"], programs, chunks=size)
            gathering = [list(pat_module.allgather(rank, size, most)) for rank in range(size)]
            verify_steps(CONTRACTS["allgather"], gathering, chunks=size, order="rank")
            messages = [op for steps in programs + gathering for step in steps for op in step]
            assert all(len(ids(op.chunks)) <= most for op in messages if isinstance(op, Send))
    assert len(list(pat_module.allgather(0, 64, 8))) == 3 + 64 // 8 - 1
