"""Schedules broken on purpose: each fault is caught, and named for what it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hocket.algorithms import CONTRACTS, Algorithm, Copy, Recv, Send, Step, get, names, verify
from hocket.algorithms.proof.verify import verify_steps
from hocket.errors import ArgumentError, ScheduleError
from support.cases import each

Programs = list[list[Step]]


def programs_of(collective: str, name: str, size: int, root: int = 0) -> Programs:
    return [list(get(collective, name).steps(rank, size, root)) for rank in range(size)]


def refuse(programs: Programs, why: str, collective: str = "allreduce", chunks: int | None = None) -> None:
    with pytest.raises(ScheduleError, match=why):
        verify_steps(CONTRACTS[collective], programs, chunks=len(programs) if chunks is None else chunks)


@pytest.fixture
def ring() -> Programs:
    """The ring allreduce of 4 ranks: step t of every rank is one send and one receive; it is correct."""
    programs = programs_of("allreduce", "ring", 4)
    verify_steps(CONTRACTS["allreduce"], programs, chunks=4)
    return programs


Edit = tuple[int, int, type, dict[str, object] | None]
"""A rank, a step, Send or Recv, and its fields that change; None: it is dropped."""
EDITS: dict[str, tuple[str, list[Edit]]] = {
    "a dropped send": ("step 2: rank 1 does not send what is received by rank 2", [(1, 2, Send, None)]),
    "a dropped receive": ("step 2: rank 1 sends a message that is never received by rank 2", [(2, 2, Recv, None)]),
    "a dropped message": (
        r"at the end rank 0 chunk 0 holds .*; expected each of \(0, 1, 2, 3\) once",
        [(1, 0, Send, None), (2, 0, Recv, None)]),
    "reduced twice": ("holds .*expected each of", [(2, 4, Recv, {"reduce": True})]),
    "overwritten where it should reduce": ("holds .*expected each of", [(2, 1, Recv, {"reduce": False})]),
    "a wrong chunk on one side": (
        "step 1: rank 1 sends chunks 3 where rank 2 receives 2", [(2, 1, Recv, {"chunks": 2})]),
    "a wrong chunk on both sides": ("expected each of", [(1, 1, Send, {"chunks": 2}), (2, 1, Recv, {"chunks": 2})]),
    "a wrong peer": ("step 0: rank 1 does not send what is received by rank 2", [(1, 0, Send, {"peer": 3})]),
    "a message to oneself": (
        r"rank 1 step 0: Send\(peer=1, chunks=0\) must name another rank of 0..3", [(1, 0, Send, {"peer": 1})]),
    "a peer below all": ("rank 1 step 0: Recv.* must name another rank", [(1, 0, Recv, {"peer": -1})]),
    "a peer above all": ("rank 1 step 0: Recv.* must name another rank", [(1, 0, Recv, {"peer": 4})]),
    "a chunk below all": ("rank 1 step 0: Send.* names a chunk outside 0..3", [(1, 0, Send, {"chunks": -1})]),
    "a chunk above all": ("rank 1 step 0: Send.* names a chunk outside 0..3", [(1, 0, Send, {"chunks": 4})]),
    "an empty message": ("rank 1 step 0: Send.* has no chunk", [(1, 0, Send, {"chunks": ()})]),
    "a chunk twice in a message": ("rank 1 step 0: Send.* names a chunk twice", [(1, 0, Send, {"chunks": (1, 1)})]),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_of_the_ring_is_refused(ring: Programs, what: str) -> None:
    why, edits = EDITS[what]
    for rank, step, kind, changes in edits:
        ops = ring[rank][step]
        ring[rank][step] = tuple(
            op._replace(**changes or {}) if isinstance(op, kind) else op  # type: ignore[union-attr]
            for op in ops if changes is not None or not isinstance(op, kind)
        )  # fmt: skip
    refuse(ring, why)


def test_swapped_steps(ring: Programs) -> None:
    ring[2][0], ring[2][1] = ring[2][1], ring[2][0]
    refuse(ring, "step 0: rank . sends chunks . where rank . receives .")


def test_swapped_messages_in_a_step() -> None:
    there = (Send(1, 0), Send(1, 1), Recv(1, 0, True), Recv(1, 1, True))
    back = (Send(0, 0), Send(0, 1), Recv(0, 0, True), Recv(0, 1, True))
    verify_steps(CONTRACTS["allreduce"], [[there], [back]], chunks=2)
    refuse([[there], [(back[1], back[0], *back[2:])]], "rank 1 sends chunks 1 where rank 0 receives 0")


def test_one_rank_a_step_late() -> None:
    programs = programs_of("broadcast", "binomial", 4)
    programs[3].insert(0, ())
    for steps in programs[:3]:
        steps.append(())
    refuse(
        programs, "misaligned clock: rank 2 sends chunks 0 in step 1, rank 3 receives them in step 2", "broadcast", 1
    )


def test_different_numbers_of_steps(ring: Programs) -> None:
    ring[3].append(())
    refuse(ring, "misaligned clock: the ranks yield different numbers of steps, {0: 6, 1: 6, 2: 6, 3: 7}")


WRONG: dict[str, tuple[Programs, str, str, int]] = {
    "overwritten twice in a step": (
        [[(Recv(1, 0), Recv(2, 0))], [(Send(0, 0),)], [(Send(0, 0),)]],
        "rank 0 step 0: .*chunk 0 is overwritten twice", "reduce", 1),
    "overwritten and reduced in a step": (
        [[(Recv(1, 0), Recv(2, 0, reduce=True))], [(Send(0, 0),)], [(Send(0, 0),)]],
        "rank 0 step 0: chunk 0 is both overwritten and reduced into", "reduce", 1),
    "copied over what is received": (
        [[(Copy(1, 0), Recv(1, 0))], [(Send(0, 0),)]], "rank 0 step 0: .*chunk 0 is overwritten twice", "reduce", 2),
    "sent before it is held": (
        programs_of("broadcast", "binomial", 4, root=1), "step 0: chunk 0 is read but holds nothing", "broadcast", 1),
    "copied before it is held": (
        [[(Copy(2, 1),)], [()]], "rank 0 step 0: chunk 2 is read but holds nothing", "alltoall", 4),
    "copied into the wrong chunk": (
        [[(Copy(0, 1),)]], "rank 0 chunk 1 holds contributions to chunk 0", "allreduce", 2),
    "different chunks added": (
        [[(Copy(0, 1),), (Recv(1, 1, reduce=True),)], [(), (Send(0, 1),)]],
        "rank 0 step 1: values of different chunks are added", "reduce", 2),
    "nothing done at all": (
        [[], []], r"rank 0 chunk 1 holds nothing; expected the contributions of ranks \(1,\)", "allgather", 2),
    "a wrong number of blocks": (
        programs_of("allgather", "ring", 4), "5 chunks; expected one for each block: 4", "allgather", 5),
    "a deadlock head to head": (
        [[(Send(1 - r, 0),), (Recv(1 - r, 0, reduce=True),)] for r in range(2)],
        "deadlock without buffering: rank 0 waits in step 0.*rank 1 waits in step 0", "allreduce", 1),
    "a deadlock around a circle": (
        [[(Recv((r + 1) % 3, r),), (Send((r - 1) % 3, (r - 1) % 3),)] for r in range(3)],
        "deadlock without buffering", "allgather", 3),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_program_is_refused(what: str) -> None:
    refuse(*WRONG[what])


def test_broken_promise_of_rank_order(ring: Programs) -> None:
    with pytest.raises(ScheduleError, match="combined in the order .* but rank order is promised"):
        verify_steps(CONTRACTS["allreduce"], ring, chunks=4, order="rank")


def test_ranks_that_sum_in_different_orders() -> None:
    """Rank 0 adds all three at once, rank 1 has (0+1)+2: both right, but not the same bits."""
    programs: Programs = [
        [(Send(1, 0), Recv(1, 0, reduce=True), Recv(2, 0, reduce=True)), (Send(2, 0),)],
        [(Send(0, 0), Recv(0, 0, reduce=True)), (Recv(2, 0, reduce=True),)],
        [(Send(0, 0),), (Send(1, 0), Recv(0, 0))],
    ]
    refuse(programs, "rank 1 chunk 0 is combined in another way than on rank 0: their last bits may differ", chunks=1)


def test_refused_size() -> None:
    whole = get("allreduce", "ring")
    picky = Algorithm("allreduce", "picky", whole.steps, whole.chunks, requires=lambda p: "p is odd" if p % 2 else None)
    verify(picky, 4)
    with pytest.raises(ArgumentError, match="allreduce picky does not run with 5 ranks: p is odd"):
        verify(picky, 5)


def test_the_text_says_which_schedule() -> None:
    whole = get("broadcast", "chain")
    wrong = Algorithm("broadcast", "wrong", lambda r, p, root: whole.steps(r, p, 0), whole.chunks)
    verify(wrong, 4, 0)
    with pytest.raises(ScheduleError, match="^broadcast wrong, 4 ranks, root 2, 3 segments: rank 0 step 0: chunk 0"):
        verify(wrong, 4, 2, segments=3)


EVERY = [(collective, name) for collective in CONTRACTS for name in names(collective)]


@each("algorithm", EVERY)
@each("size", [4, 5])
def test_no_op_can_be_spared_or_sent_elsewhere(algorithm: tuple[str, str], size: int) -> None:
    """Every single op of every algorithm: dropped, given another peer, or made to overwrite."""
    collective, name = algorithm
    good = programs_of(collective, name, size)
    chunks = get(collective, name).chunks(size)
    kinds: tuple[Callable[[Send | Recv], tuple[Send | Recv, ...]], ...] = (
        lambda op: (),
        lambda op: (op._replace(peer=(op.peer + 1) % size),),
        lambda op: (op._replace(reduce=False),) if isinstance(op, Recv) and op.reduce else (),
    )
    for rank, steps in enumerate(good):
        for t, step in enumerate(steps):
            for i, op in enumerate(step):
                for kind in kinds:
                    assert not isinstance(op, Copy)
                    broken = [list(program) for program in good]
                    broken[rank][t] = (*step[:i], *kind(op), *step[i + 1 :])
                    refuse(broken, ".", collective, chunks)
