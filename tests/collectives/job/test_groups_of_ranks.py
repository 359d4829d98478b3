"""Which ranks share memory, and which a machine: from what each of them sees."""

from __future__ import annotations

import itertools

import pytest

from hocket.collectives.job.hosts import alike, hosts, reached, sharing


def table(size: int, open_to: set[tuple[int, int]]) -> list[list[str | None]]:
    """A transport's refusals."""
    return [[None if a == b or (a, b) in open_to else "no" for b in range(size)] for a in range(size)]


def near(size: int, *pairs: tuple[int, int]) -> list[int]:
    return reached(size, [table(size, {*pairs, *((b, a) for a, b in pairs)})])


def test_ranks_reach_each_other_from_both_ends() -> None:
    """By one transport: what goes one way by one and back by another is no way."""
    first, second = table(3, {(0, 1), (1, 0), (1, 2)}), table(3, {(2, 1)})
    assert reached(3, []) == [0b001, 0b010, 0b100]
    assert reached(3, [first, second]) == [0b011, 0b011, 0b100]
    assert reached(3, [second, table(3, {(a, b) for a in range(3) for b in range(3)})]) == [0b111] * 3


def test_a_host_holds_all_that_one_of_its_ranks_shares_something_with() -> None:
    """1 shares memory with 0, which sees another folder, and names one machine with 2: they choose GPUs together."""
    memory = reached(5, [table(5, {(0, 1), (1, 0), (3, 4)})])
    assert hosts([a | b for a, b in zip(memory, alike("ABBCD"), strict=True)]) == ((0, 1, 2), (3,), (4,))
    assert hosts(near(4, (0, 3), (2, 3))) == ((0, 2, 3), (1,))
    assert sharing(near(3, (0, 1), (1, 2))) == ((0, 1), (2,)), "0 and 2 do not share memory"


@pytest.mark.parametrize("size", range(1, 5))
def test_groups_are_as_their_definition_says(size: int) -> None:
    """For every set of pairs: in a group of `sharing` all are near, and `hosts` gives the parts of the graph."""
    pairs = list(itertools.combinations(range(size), 2))
    for some in itertools.chain.from_iterable(itertools.combinations(pairs, n) for n in range(len(pairs) + 1)):
        groups, parts = sharing(near(size, *some)), hosts(near(size, *some))
        assert sorted(itertools.chain(*groups)) == sorted(itertools.chain(*parts)) == list(range(size))
        assert all(pair in some for group in groups for pair in itertools.combinations(group, 2))
        home = {r: part for part in parts for r in part}
        assert all(home[a] == home[b] for a, b in some)
        for part in parts:
            for half in itertools.chain.from_iterable(itertools.combinations(part, n) for n in range(1, len(part))):
                assert any((a in half) != (b in half) for a, b in some if a in part), (some, part)
