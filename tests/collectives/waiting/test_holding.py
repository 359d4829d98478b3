"""Lower lanes are held while a higher one goes forward: never for ever, and on real sockets for as long as it says."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pytest

from hocket.collectives.communicator.communicator import Communicator
from hocket.system import queueing
from hocket.transports.tcp.transport import BULK, INTERACTIVE
from support.worlds import in_threads, same, spread

HOLD = 0.05
"""HOLD_NS of collectives/waiting/progress.pyx, in seconds."""
STEPS = 2
"""Steps of each lane's run: the first sends, and needs nobody; the next ones need what all ranks sent before."""


# --------------------------------------------------------------------- the law, in all orders of small cases


class State(NamedTuple):
    """The state of a job, in which each lane has one run; the first lane is the highest."""

    at: tuple[int, ...]
    """By rank: how much of its program it has done."""
    steps: tuple[tuple[int, ...], ...]
    """By rank and lane."""
    recent: tuple[tuple[bool, ...], ...]
    """... has that lane, which has not ended, moved there lately?"""


Program = tuple[tuple[str, int], ...]
"""A rank's program: ("issue", lane), and ("wait", lane)."""
Rule = Callable[[State, int, int, Program], bool]
"""May this lane have a turn on this rank?"""


def issued(state: State, rank: int, program: Program) -> list[int]:
    return [lane for what, lane in program[: state.at[rank]] if what == "issue"]


def held_while_recent(state: State, rank: int, lane: int, program: Program) -> bool:
    """The law."""
    return not any(state.recent[rank][:lane])


def held_to_the_end(state: State, rank: int, lane: int, program: Program) -> bool:
    """The law without its time limit."""
    return all(state.steps[rank][h] == STEPS for h in issued(state, rank, program) if h < lane)


def one_credit(state: State, rank: int, lane: int, program: Program) -> bool:
    """ByteScheduler's: the lane that was issued first goes to its end, whichever it is."""
    under_way = [each for each in issued(state, rank, program) if state.steps[rank][each] < STEPS]
    return under_way[0] == lane


def put(rows: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*rows[:i], value, *rows[i + 1 :])


def after(state: State, programs: Sequence[Program], rule: Rule, forgets: bool) -> Iterator[State]:
    """All that may happen next.  `forgets`: moves become old."""
    for rank, program in enumerate(programs):
        if state.at[rank] < len(program):
            what, lane = program[state.at[rank]]
            if what == "issue" or state.steps[rank][lane] == STEPS:
                yield state._replace(at=put(state.at, rank, state.at[rank] + 1))
        for lane in issued(state, rank, program):
            done = state.steps[rank][lane]
            came = all(each[lane] >= done for each in state.steps)
            if done < STEPS and came and rule(state, rank, lane, program):
                yield state._replace(
                    steps=put(state.steps, rank, put(state.steps[rank], lane, done + 1)),
                    recent=put(state.recent, rank, put(state.recent[rank], lane, done + 1 < STEPS)),
                )
            if forgets and state.recent[rank][lane]:
                yield state._replace(recent=put(state.recent, rank, put(state.recent[rank], lane, False)))


def deadlocks(programs: Sequence[Program], lanes: int, rule: Rule, forgets: bool = True) -> bool:
    """Can a job of these programs come to where nothing more happens, and something is unfinished?"""
    size = len(programs)
    first = State((0,) * size, ((0,) * lanes,) * size, ((False,) * lanes,) * size)
    found, seen = [first], {first}
    while found:
        state = found.pop()
        more = [*after(state, programs, rule, forgets)]
        if not more and any(state.at[r] < len(programs[r]) or min(state.steps[r]) < STEPS for r in range(size)):
            return True
        new = set(more) - seen
        seen |= new
        found += new
    return False


def orders(lanes: int) -> list[Program]:
    """All orders in which a rank may issue, and wait for nothing before the end."""
    return [tuple(("issue", lane) for lane in order) for order in itertools.permutations(range(lanes))]


@pytest.mark.parametrize(("size", "lanes"), [(2, 2), (3, 2), (2, 3)])
def test_no_order_of_issue_deadlocks(size: int, lanes: int) -> None:
    for programs in itertools.combinations_with_replacement(orders(lanes), size):  # ranks differ by nothing else
        assert not deadlocks(programs, lanes, held_while_recent), programs
        assert not deadlocks(programs, lanes, held_to_the_end, forgets=False), programs


def test_a_high_lane_that_waits_for_a_late_rank_lets_go() -> None:
    """Rank 1 issues the high run when the low one has ended: legal, and what the time limit is for."""
    programs: tuple[Program, ...] = (
        (("issue", 0), ("issue", 1)),
        (("issue", 1), ("wait", 1), ("issue", 0)),
    )
    assert deadlocks(programs, 2, held_to_the_end, forgets=False)
    assert not deadlocks(programs, 2, held_while_recent)


def test_programs_that_wait_deadlock_by_the_law_only_where_they_would_without() -> None:
    def free(state: State, rank: int, lane: int, program: Program) -> bool:
        return True

    acts = [("issue", 0), ("issue", 1), ("wait", 0), ("wait", 1)]
    legal = [p for p in itertools.permutations(acts) if all(p.index(acts[i]) < p.index(acts[i + 2]) for i in (0, 1))]
    found = {(deadlocks(p, 2, free), deadlocks(p, 2, held_while_recent)) for p in itertools.product(legal, legal)}
    assert found == {(False, False), (True, True)}


def test_one_credit_for_all_lanes_deadlocks() -> None:
    found = [deadlocks(programs, 2, one_credit) for programs in itertools.product(orders(2), repeat=2)]
    assert found == [False, True, True, False]


# ------------------------------------------------------------------------------------------ on real sockets


N = 20_000


def total(lane: Communicator) -> None:
    same(lane.allreduce(np.ones(N, np.float32)), np.full(N, 2, np.float32), lane.name)


def lower(comm: Communicator, blocking: bool) -> float:
    """Seconds of a low call on rank 0, whose high call is unfinished, as rank 1 makes that later."""
    high, low = comm.lane("high", 1), comm.lane("low", -1)
    total(high)
    total(low)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.02)
        low.allreduce(np.ones(N, np.float32), async_op=True).wait()
        total(high)
        return 0.0
    seconds = []

    def bulk() -> None:
        time.sleep(0.01)
        began = time.perf_counter()
        low.allreduce(np.ones(N, np.float32), async_op=True).wait()
        seconds.append(time.perf_counter() - began)

    if blocking:
        in_threads(lambda: total(high), bulk)
    else:
        work = high.allreduce(np.ones(N, np.float32), async_op=True)
        bulk()
        work.wait()
    return seconds[0]


def held_for_a_while(comm: Communicator) -> None:
    for blocking in (False, True):
        usual = median(lower(comm, blocking) for _ in range(5))  # in one of them the high call may have come too late
        assert comm.rank or 0.7 * HOLD < usual < 40 * HOLD, (blocking, usual)


def not_held(comm: Communicator) -> None:
    best = min(lower(comm, blocking) for blocking in (False, True) for _ in range(5))
    assert best < HOLD / 2, best


def test_a_lower_lane_is_held_for_a_while_where_bytes_leave_the_host() -> None:
    spread(held_for_a_while, 2, "tcp")


def test_a_lower_lane_is_not_held_inside_a_host() -> None:
    spread(not_held, 2, "shm")


def a_higher_call_that_has_ended_holds_nothing(comm: Communicator) -> None:
    high, low = comm.lane("high", 1), comm.lane("low", -1)
    seconds = []
    for _ in range(20):
        bulk = low.allreduce(np.ones(N, np.float32), async_op=True)
        total(high)
        began = time.perf_counter()
        bulk.wait()
        seconds.append(time.perf_counter() - began)
    assert sorted(seconds)[4] < HOLD / 2, seconds  # were it held, each would take longer


def test_what_has_ended_holds_nothing() -> None:
    spread(a_higher_call_that_has_ended_holds_nothing, 2, "tcp")


# ------------------------------------------------------------------------------------- what the system is told


def marked(comm: Communicator) -> None:
    for lane, wanted in ((comm.lane("high", 3), INTERACTIVE), (comm, 0), (comm.lane("low", -3), BULK)):
        lane.allreduce(np.ones(9))
        streams = [each for queue in lane.membership.queues.values() for each in queue.channels["tcp"].held.streams]
        found = {fd: socket.socket(fileno=fd) for fd in map(int, open_sockets())}
        told = [each.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) for each in found.values()]
        for each in found.values():
            each.detach()
        ours = [stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) for stream in streams]
        assert ours and set(ours) == {wanted}
        if wanted:
            assert told.count(wanted) == 2 * len(streams), told  # those that we receive from, too
    assert "tcp sends by lo (noqueue): nothing queues here" in comm.explain()


def open_sockets() -> list[str]:
    """The descriptors of this process's sockets."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += [fd] if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") else []
    return found


def test_the_system_is_told_of_priorities() -> None:
    spread(marked, 2, "tcp")


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["noqueue"], "nothing queues here"),
        (["mq", "fq_codel", "fq_codel"], "ignores the priority of lanes"),
        (["tbf", "pfifo_fast"], "packets of lanes above 0 go first"),
        (["fq"], "packets of lanes above 0 go first"),
        ([], "ignores the priority of lanes"),
    ],
)
def test_what_is_said_of_disciplines(kinds: list[str], said: str) -> None:
    assert queueing.verdict(kinds).startswith(said)


def test_the_kernel_says_how_it_queues() -> None:
    assert queueing.queueing("127.0.0.1") == "lo (noqueue): nothing queues here"
    assert queueing.queueing("192.0.2.77") == ""
