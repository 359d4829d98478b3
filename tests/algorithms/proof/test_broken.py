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


def edit(programs: Programs, rank: int, step: int, kind: type, **changes: object) -> None:
    programs[rank][step] = tuple(
        op._replace(**changes) if isinstance(op, kind) else op  # type: ignore[union-attr]
        for op in programs[rank][step]
    )


def drop(programs: Programs, rank: int, step: int, kind: type) -> None:
    programs[rank][step] = tuple(op for op in programs[rank][step] if not isinstance(op, kind))


def test_dropped_send(ring: Programs) -> None:
    drop(ring, 1, 2, Send)
    refuse(ring, "step 2: rank 1 does not send what is received by rank 2")


def test_dropped_receive(ring: Programs) -> None:
    drop(ring, 2, 2, Recv)
    refuse(ring, "step 2: rank 1 sends a message that is never received by rank 2")


def test_dropped_message(ring: Programs) -> None:
    drop(ring, 1, 0, Send)
    drop(ring, 2, 0, Recv)
    refuse(ring, r"at the end rank 0 chunk 0 holds .*; expected each of \(0, 1, 2, 3\) once")


def test_reduced_twice(ring: Programs) -> None:
    edit(ring, 2, 4, Recv, reduce=True)
    refuse(ring, "holds .*expected each of")


def test_overwritten_where_it_should_reduce(ring: Programs) -> None:
    edit(ring, 2, 1, Recv, reduce=False)
    refuse(ring, "holds .*expected each of")


def test_wrong_chunk_on_one_side(ring: Programs) -> None:
    edit(ring, 2, 1, Recv, chunks=2)
    refuse(ring, "step 1: rank 1 sends chunks 3 where rank 2 receives 2")


def test_wrong_chunk_on_both_sides(ring: Programs) -> None:
    edit(ring, 1, 1, Send, chunks=2)
    edit(ring, 2, 1, Recv, chunks=2)
    refuse(ring, "expected each of")


def test_wrong_peer(ring: Programs) -> None:
    edit(ring, 1, 0, Send, peer=3)
    refuse(ring, "step 0: rank 1 does not send what is received by rank 2")


def test_message_to_oneself(ring: Programs) -> None:
    edit(ring, 1, 0, Send, peer=1)
    refuse(ring, r"rank 1 step 0: Send\(peer=1, chunks=0\) must name another rank of 0..3")


@pytest.mark.parametrize("peer", [-1, 4])
def test_peer_that_is_not_there(ring: Programs, peer: int) -> None:
    edit(ring, 1, 0, Recv, peer=peer)
    refuse(ring, "rank 1 step 0: Recv.* must name another rank")


@pytest.mark.parametrize("chunk", [-1, 4])
def test_chunk_that_is_not_there(ring: Programs, chunk: int) -> None:
    edit(ring, 1, 0, Send, chunks=chunk)
    refuse(ring, "rank 1 step 0: Send.* names a chunk outside 0..3")


def test_empty_message(ring: Programs) -> None:
    edit(ring, 1, 0, Send, chunks=())
    refuse(ring, "rank 1 step 0: Send.* has no chunk")


def test_chunk_twice_in_a_message(ring: Programs) -> None:
    edit(ring, 1, 0, Send, chunks=(1, 1))
    refuse(ring, "rank 1 step 0: Send.* names a chunk twice")


def test_swapped_steps(ring: Programs) -> None:
    ring[2][0], ring[2][1] = ring[2][1], ring[2][0]
    refuse(ring, "step 0: rank . sends chunks . where rank . receives .")


def test_swapped_messages_in_a_step() -> None:
    there = (Send(1, 0), Send(1, 1), Recv(1, 0, True), Recv(1, 1, True))
    back = (Send(0, 0), Send(0, 1), Recv(0, 0, True), Recv(0, 1, True))
    verify_steps(CONTRACTS["allreduce"], [[there], [back]], chunks=2)
    refuse([[there], [(back[1], back[0], *back[2:])]], "rank 1 sends chunks 1 where rank 0 receives 0")


def test_head_to_head_deadlock() -> None:
    programs: Programs = [[(Send(1 - r, 0),), (Recv(1 - r, 0, reduce=True),)] for r in range(2)]
    refuse(programs, "deadlock without buffering: rank 0 waits in step 0.*rank 1 waits in step 0", chunks=1)


def test_deadlock_around_a_circle() -> None:
    programs: Programs = [[(Recv((r + 1) % 3, r),), (Send((r - 1) % 3, (r - 1) % 3),)] for r in range(3)]
    refuse(programs, "deadlock without buffering", "allgather")


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


def test_overwritten_twice_in_a_step() -> None:
    programs: Programs = [[(Recv(1, 0), Recv(2, 0))], [(Send(0, 0),)], [(Send(0, 0),)]]
    refuse(programs, "rank 0 step 0: .*chunk 0 is overwritten twice", "reduce", 1)


def test_overwritten_and_reduced_in_a_step() -> None:
    programs: Programs = [[(Recv(1, 0), Recv(2, 0, reduce=True))], [(Send(0, 0),)], [(Send(0, 0),)]]
    refuse(programs, "rank 0 step 0: chunk 0 is both overwritten and reduced into", "reduce", 1)


def test_copied_over_what_is_received() -> None:
    programs: Programs = [[(Copy(1, 0), Recv(1, 0))], [(Send(0, 0),)]]
    refuse(programs, "rank 0 step 0: .*chunk 0 is overwritten twice", "reduce", 2)


def test_sent_before_it_is_held() -> None:
    refuse(programs_of("broadcast", "binomial", 4, root=1), "step 0: chunk 0 is read but holds nothing", "broadcast", 1)


def test_copied_before_it_is_held() -> None:
    refuse([[(Copy(2, 1),)], [()]], "rank 0 step 0: chunk 2 is read but holds nothing", "alltoall", 4)


def test_copied_into_the_wrong_chunk() -> None:
    refuse([[(Copy(0, 1),)]], "rank 0 chunk 1 holds contributions to chunk 0", chunks=2)


def test_different_chunks_added() -> None:
    programs: Programs = [[(Copy(0, 1),), (Recv(1, 1, reduce=True),)], [(), (Send(0, 1),)]]
    refuse(programs, "rank 0 step 1: values of different chunks are added", "reduce", 2)


def test_nothing_done_at_all() -> None:
    refuse([[], []], r"rank 0 chunk 1 holds nothing; expected the contributions of ranks \(1,\)", "allgather")


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


def test_wrong_number_of_blocks() -> None:
    refuse(programs_of("allgather", "ring", 4), "5 chunks; expected one for each block: 4", "allgather", 5)


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
