"""Third parties add algorithms the way the library does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hocket.algorithms import Algorithm, Recv, Schedule, Send, algorithm, get, ids, names, register, verify
from hocket.algorithms.language import registry
from hocket.algorithms.language.compose import beside, embed, mirror, pipelined, then
from hocket.algorithms.language.schedule import Copy
from hocket.errors import ArgumentError


@pytest.fixture(autouse=True)
def unchanged_catalogue() -> Iterator[None]:
    before = dict(registry._known)
    yield
    registry._known.clear()
    registry._known.update(before)


def test_an_algorithm_of_ones_own() -> None:
    @algorithm("allreduce", order="rank", requires=lambda p: None if p == 2 else "two ranks only")
    def swap(rank: int, size: int) -> Schedule:
        """Both send, both add.  1 step, n bytes."""
        yield Send(1 - rank, 0), Recv(1 - rank, 0, reduce=True)

    mine = get("allreduce", "swap")
    assert "swap" in names("allreduce") and "swap" not in names("reduce")
    assert (mine.chunks(2), mine.order, mine.scratch, mine.pipeline) == (1, "rank", 0, False)
    assert mine.doc == "Both send, both add.  1 step, n bytes."
    assert mine.requires(3) == "two ranks only"
    verify(mine, 2)
    assert list(swap(0, 2)) == list(mine.steps(0, 2, 0))


def test_rooted_functions_see_the_root_and_blocks_have_their_number() -> None:
    assert list(get("broadcast", "direct").steps(1, 2, 1)) == [(Send(0, 0),)]
    assert get("allgather", "ring").chunks(7) == 7
    assert get("alltoall", "direct").chunks(7) == 49
    assert get("scan", "linear").chunks(7) == 1


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no allreduce algorithm 'rung'; known: .*one_shot.*ring"):
        get("allreduce", "rung")
    with pytest.raises(ArgumentError, match="no collective 'reduceall'; known: allreduce, .*exscan"):
        names("reduceall")
    with pytest.raises(ArgumentError, match="no collective 'reduceall'"):
        algorithm("reduceall")
    ring = get("allreduce", "ring")
    with pytest.raises(ArgumentError, match="allreduce algorithm 'ring' is registered already"):
        register(ring)
    assert register(Algorithm("allreduce", "ring again", ring.steps, ring.chunks)).name == "ring again"


def test_ids() -> None:
    assert list(ids(3)) == [3]
    assert list(ids(range(2, 5))) == [2, 3, 4]
    assert list(ids((4, 0))) == [4, 0]


def test_composition() -> None:
    step = (Send(1, 0), Recv(2, range(1, 3), reduce=True))
    assert list(mirror([step, ()])) == [(), (Recv(1, 0), Send(2, range(1, 3)))]
    with pytest.raises(ArgumentError, match="cannot be mirrored: Copy"):
        list(mirror([(Copy(0, 1),)]))
    assert list(then([step], [()])) == [step, ()]
    assert list(beside([[step], [(), (Send(0, 0),)]], 3)) == [step, (Send(0, 0),), ()]
    placed = list(embed([step, (Copy(0, 1),)], [7, 8, 9], lambda c: (10 * c, 10 * c + 1)))
    assert placed == [(Send(8, (0, 1)), Recv(9, (10, 11, 20, 21), True)), (Copy(0, 10), Copy(1, 11))]
    assert list(embed([step], [7, 8, 9], lambda c: (c,) if c else ())) == [(Recv(9, (1, 2), True),)]
    assert list(pipelined([(Send(1, 0),), (Copy(0, 1),)], 2, 5)) == [
        (Send(1, 0),),
        (Copy(0, 1), Send(1, (5,))),
        (Copy(5, 6),),
    ]
