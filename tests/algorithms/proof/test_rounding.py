"""The numbers by which a codec rounds at random: equal values by the same numbers, different ones by others, on all
ranks."""

from __future__ import annotations

import pytest

from hocket.algorithms import CONTRACTS, Algorithm, Recv, Send, get, hierarchical, ids, names, verify
from hocket.algorithms.language.schedule import Schedule
from hocket.algorithms.proof.rounding import numbers
from hocket.algorithms.proof.walk import start, walk
from hocket.collectives.calls.encodings import COLLECTIVES
from hocket.errors import ScheduleError

ALL = [get(collective, name) for collective in COLLECTIVES for name in names(collective)]
REDUCING = [algorithm for algorithm in ALL if CONTRACTS[algorithm.collective].reduces]
GROUPS = ((0, 1, 2), (3, 4), (5, 6, 7))


def label(algorithm: Algorithm) -> str:
    return f"{algorithm.collective}-{algorithm.name}"


def rounded(algorithm: Algorithm, size: int) -> list[tuple[int, tuple[int, int]]]:
    """Every encoding of every rank: the numbers it rounds by, and what is encoded, as (chunk, the sums it is of)."""
    programs = [list(algorithm.steps(rank, size, 0)) for rank in range(size)]
    held = start(CONTRACTS[algorithm.collective], size, 0, algorithm.chunks(size))
    by = [numbers(algorithm, rank, size) for rank in range(size)]
    found = [(by[rank](0, c), (c, value.made)) for rank in range(size) for c, value in held[rank].items()]
    for t, _ in enumerate(walk(programs, held)):
        for rank, steps in enumerate(programs):
            sums = {c for op in steps[t] if isinstance(op, Recv) and op.reduce for c in ids(op.chunks)}
            found += [(by[rank](t + 1, c), (c, held[rank][c].made)) for c in sums if len(held[rank][c].ranks) > 1]
    return found


@pytest.mark.parametrize("algorithm", REDUCING, ids=label)
def test_equal_values_have_the_same_numbers_and_different_ones_have_others(algorithm: Algorithm) -> None:
    for size in range(1, 18):
        found = set(rounded(algorithm, size))
        assert len({by for by, _ in found}) == len({value for _, value in found}) == len(found)


@pytest.mark.parametrize("algorithm", REDUCING, ids=label)
def test_repeats_is_not_said_in_vain(algorithm: Algorithm) -> None:
    """Where it is said, some rank makes a sum that another has made; where it is not, the proof holds without."""
    encodings = rounded(algorithm, 8)
    repeats = len(set(encodings)) < len(encodings)
    assert algorithm.repeats == repeats, f"say repeats={repeats}"


def hidden(rank: int, size: int, root: int) -> Schedule:
    return get("allreduce", "recursive_doubling").steps(rank, size, root)


def test_a_sum_that_several_ranks_make_and_deny() -> None:
    denied = Algorithm("allreduce", "hidden", hidden, lambda size: 1, repeats=False)
    verify(denied, 1)
    for size in (2, 3, 8):
        with pytest.raises(ScheduleError, match="is encoded in another way than on rank 0: .* say repeats=True"):
            verify(denied, size)


@pytest.mark.parametrize("outer", ["ring", "recursive_doubling", "one_shot"])
def test_between_hosts(outer: str) -> None:
    """Only the leaders' sums are encoded, so an outer algorithm alone says whether sums repeat."""
    algorithm = hierarchical("allreduce", GROUPS, outer=outer)
    assert algorithm.repeats == (outer != "ring")
    verify(algorithm, 8)


def needless(rank: int, size: int, root: int) -> Schedule:
    """All have the sum; then rank 0 sends it to rank 1 once more."""
    yield from get("allreduce", "one_shot").steps(rank, size, root)
    yield ((Send(1, 0),), (Recv(0, 0),), ())[min(rank, 2)]


def test_a_chunk_that_some_ranks_hold_encoded_and_others_do_not() -> None:
    verify(Algorithm("allreduce", "needless", needless, lambda size: 1), 3)
    with pytest.raises(ScheduleError, match="rank 2 chunk 0 is encoded in another way than on rank 0"):
        verify(Algorithm("allreduce", "needless", needless, lambda size: 1, far=lambda size: 1), 3)
