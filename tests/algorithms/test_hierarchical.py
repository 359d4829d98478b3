"""Two-level algorithms are proven like all others, over many groupings."""

from __future__ import annotations

import pytest

from hocket.algorithms import CONTRACTS, Recv, Send, get, hierarchical, ids, names, show, simulate, topology, verify
from hocket.algorithms.hierarchical import STAGES
from hocket.errors import ArgumentError, ScheduleError
from support.cases import each, more

GROUPINGS = [
    ((0,),),
    ((0, 1, 2),),
    ((0,), (1,), (2,)),
    ((0, 1), (2, 3)),
    ((0, 2), (1, 3)),
    ((0, 1, 2), (3,)),
    ((0, 1, 2), (3, 4), (5, 6, 7, 8)),
    ((5, 0, 3), (4, 1), (2, 6)),
]
LARGE = [tuple(tuple(range(4 * j, 4 * j + 4)) for j in range(4)), tuple(tuple(range(j, 15, 5)) for j in range(5))]


def outers(collective: str) -> tuple[str, ...]:
    ring = ("ring",) if CONTRACTS[collective].rooted else ()
    return (*names(collective), *ring)


@pytest.mark.parametrize("collective", STAGES)
@pytest.mark.parametrize("groups", [*GROUPINGS, *more(*((each,) for each in LARGE))], ids=str)
def test_every_grouping_outer_inner_root_and_number_of_leaders(
    collective: str, groups: tuple[tuple[int, ...], ...]
) -> None:
    size = sum(map(len, groups))
    for outer in outers(collective):
        for inner in ("direct", "binomial", "chain"):
            for leaders in (None, *range(1, min(map(len, groups)) + 1)):
                algorithm = hierarchical(collective, groups, inner, outer, leaders)
                for root in range(size) if CONTRACTS[collective].rooted and size < 10 else (size - 1,):
                    verify(algorithm, size, root)


@pytest.mark.parametrize("collective", STAGES)
def test_by_name_it_is_that_of_two_hosts_with_half_of_the_ranks_each(collective: str) -> None:
    found = get(collective, "hierarchical")
    for size in (1, 2, 3, 4, 7, 8):
        verify(found, size, size - 1)
        verify(found, size, segments=2)
        assert simulate(found, size, 1 << 20, topology("flat:latency=1us,bandwidth=1GB")).size == size
    halves = hierarchical(collective, ((0, 1, 2, 3), (4, 5, 6)))
    assert [list(found.steps(r, 7, 2)) for r in range(7)] == [list(halves.steps(r, 7, 2)) for r in range(7)]
    assert str(show("hierarchical", collective, size=7, root=2)).splitlines()[3:] == (
        str(show(halves, size=7, root=2)).splitlines()[3:]
    )
    assert "hierarchical" not in names(collective), "what is chosen by size alone"
    with pytest.raises(ArgumentError, match="known: .*, hierarchical"):
        get(collective, "hierarchic")


def test_of_other_collectives_there_is_none() -> None:
    with pytest.raises(ArgumentError, match="no scan algorithm 'hierarchical'; known: linear"):
        show("hierarchical", "scan")


@pytest.mark.parametrize("collective", STAGES)
def test_pipelined_over_segments(collective: str) -> None:
    verify(hierarchical(collective, ((0, 1, 2), (3, 4), (5, 6, 7, 8))), 9, segments=3)


@each("collective", STAGES)
@each("groups", [*GROUPINGS, *LARGE])
def test_it_tells_from_which_step_on_it_goes_far(collective: str, groups: tuple[tuple[int, ...], ...]) -> None:
    """All steps before stay inside the groups; behind those between groups nothing is added up."""
    algorithm, home = hierarchical(collective, groups), {rank: g for g, group in enumerate(groups) for rank in group}
    if len(groups) == 1:
        assert algorithm.far is None
        return
    assert algorithm.far is not None
    first = algorithm.far(len(home))
    crossing, adding = set(), set()
    for rank in home:
        for root in (0, len(home) - 1):
            for i, step in enumerate(algorithm.steps(rank, len(home), root)):
                for op in step:
                    if home[op.peer] != home[rank]:  # type: ignore[union-attr]
                        crossing.add(i)
                    if isinstance(op, Recv) and op.reduce:
                        adding.add(i)
    assert min(crossing) == first and max(adding, default=0) <= max(crossing)


def test_behind_the_steps_that_add_all_ranks_hand_on_what_is_whole() -> None:
    """A message goes in a step that adds on both sides, or on neither."""
    two = [(hierarchical("allreduce", g, outer=o), sum(map(len, g))) for g in GROUPINGS for o in names("allreduce")]
    known = [(get("allreduce", name), size) for name in names("allreduce") for size in (*range(1, 10), 16)]
    for algorithm, size in ((a, size) for a, size in (*two, *known) if a.added is not None):
        added, sent, taken = algorithm.added(size), set(), set()
        for rank in range(size):
            for i, step in enumerate(algorithm.steps(rank, size, 0)):
                for op in step:
                    assert i < added or not (isinstance(op, Recv) and op.reduce), (algorithm.doc, size)
                    if isinstance(op, Send):
                        sent |= {(rank, op.peer, i, chunk, i < added) for chunk in ids(op.chunks)}
                    elif isinstance(op, Recv):
                        taken |= {(op.peer, rank, i, chunk, i < added) for chunk in ids(op.chunks)}
        assert sent == taken, (algorithm.doc, size)
    assert {algorithm.name for algorithm, _ in known if algorithm.added} == {"direct", "halving_doubling", "ring"}


def test_rank_order_is_kept_where_it_can_be() -> None:
    consecutive, woven = ((0, 1, 2), (3, 4)), ((0, 2, 4), (1, 3))
    assert hierarchical("allreduce", consecutive, outer="recursive_doubling").order == "rank"
    assert hierarchical("allreduce", consecutive, outer="ring").order == "any"
    assert hierarchical("allreduce", consecutive, inner="chain", outer="direct").order == "any"
    assert hierarchical("allreduce", woven, outer="recursive_doubling").order == "any"
    assert hierarchical("broadcast", woven).order == "rank"


def test_only_leaders_talk_between_groups_and_share_the_bytes() -> None:
    groups = tuple(tuple(range(4 * j, 4 * j + 4)) for j in range(4))
    host = {rank: j for j, group in enumerate(groups) for rank in group}
    for leaders in (1, 2, 4):
        algorithm = hierarchical("allreduce", groups, leaders=leaders)
        crossing = [0] * 16
        for rank in range(16):
            for step in algorithm.steps(rank, 16, 0):
                for op in step:
                    if isinstance(op, Send) and host[op.peer] != host[rank]:
                        crossing[rank] += len(ids(op.chunks))
        assert [r for r in range(16) if crossing[r]] == [r for group in groups for r in group[:leaders]]
        outer_ring = 2 * 3 / 4 / leaders  # of the vector: 2(g-1)/g of a part
        assert max(crossing) / algorithm.chunks(16) == outer_ring


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'alltoall' has no hierarchical algorithm"):
        hierarchical("alltoall", ((0,), (1,)))
    for groups in ((), ((0, 1), (1, 2)), ((0, 2),)):
        with pytest.raises(ArgumentError, match="each rank 0..p-1 exactly once"):
            hierarchical("allreduce", groups)
    for leaders in (0, 3):
        with pytest.raises(ArgumentError, match=f"leaders={leaders}: must be 1..2"):
            hierarchical("allreduce", ((0, 1, 2), (3, 4)), leaders=leaders)
    with pytest.raises(ArgumentError, match="choose an algorithm that works on one chunk"):
        hierarchical("broadcast", ((0, 1), (2, 3)), inner="scatter_allgather")
    with pytest.raises(ArgumentError, match="known: one_shot"):
        hierarchical("allreduce", ((0, 1), (2, 3)), outer="unheard of")
    with pytest.raises(ArgumentError, match="its groups hold 4 ranks"):
        verify(hierarchical("allreduce", ((0, 1), (2, 3))), 5)


def test_the_proof_sees_a_group_left_out() -> None:
    good = hierarchical("allreduce", ((0, 1), (2, 3)))
    lame = get("allreduce", "direct")
    with pytest.raises(ScheduleError):
        verify(type(good)("allreduce", "half", lambda r, p, root: lame.steps(r % 2, 2, 0), lame.chunks), 4)
