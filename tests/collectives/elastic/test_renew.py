"""Jobs that outlive their ranks: real processes, killed, stopped and slow; each law of `renew`."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.elastic.elastic import Elastic
from hocket.control.protocol.generations import Generation
from hocket.control.protocol.seats import Seat
from support.cases import more
from support.elastic_ranks import BEGIN, mark, said, wait_for
from support.jobs import Job


@pytest.mark.parametrize(
    ("victim", "transport", "encrypt"),
    [(0, "tcp", "1"), (3, "shm", "0"), *more((0, "shm", "0"), (1, "shm", "0"), (1, "tcp", "0"), (3, "tcp", "0"))],
)
def test_any_rank_may_be_killed(victim: int, transport: str, encrypt: str) -> None:
    """A job that is encrypted stays so."""
    source = BEGIN + f"""
comm.lane("urgent", priority=2)
comm.set_timeout(60)
comm.barrier()
if me == {victim}:
    die_in_calls(comm)
ranks = until_lost(comm)
made = comm.renew({{"step": me}})
links = [type(link._sock).__name__ for link in made.world.elastic.mesh._links.values()]
told(made, ranks=ranks, lanes=[lane.membership.priority for lane in made._open_lanes().values()], links=links)
made.close()
"""
    with Job(4, source, env={"HOCKET_TRANSPORT": transport, "HOCKET_ENCRYPT": encrypt}) as job:
        ends = job.wait()
    left = [rank for rank in range(4) if rank != victim]
    rows = said(ends, *left)
    assert [row["rank"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert (row["size"], row["generation"], row["previous"]) == (3, 1, left)
        assert row["infos"] == [{"step": rank} for rank in left]
        assert (row["lost"], row["ranks"], row["lanes"]) == ([victim], [victim], [2])
        assert row["previous_lost"] == {str(victim): "dead"}
        assert row["sum"] == 10 - (victim + 1) and {"EncryptedSocket": "1"}.get(row["links"][0], "0") == encrypt, row


def test_two_ranks_of_one_host_can_lose_one_and_two_of_four_at_once() -> None:
    for size, victims in ((2, [0]), (4, [1, 0])):
        source = BEGIN + f"""
comm.barrier()
if me in {victims}:
    die_in_calls(comm)
until_lost(comm)
made = comm.renew(me)
told(made)
made.close()
"""
        with Job(size, source) as job:
            ends = job.wait()
        left = [rank for rank in range(size) if rank not in victims]
        for row in said(ends, *left):
            assert row["infos"] == left and row["lost"] == sorted(victims)


def test_one_after_the_other_until_one_is_left() -> None:
    source = BEGIN + """
for last in (4, 3, 2):
    comm.barrier()
    if comm.rank == comm.size - 1 if last % 2 else comm.rank == 0:
        die_in_calls(comm)
    until_lost(comm)
    comm = comm.renew(me)
told(comm)
"""
    with Job(4, source) as job:
        ends = job.wait()
    (row,) = (json.loads(end.out) for end in ends if end.code == 0)
    assert (row["size"], row["generation"]) == (1, 3)


def test_who_is_there_and_has_not_called_is_waited_for() -> None:
    source = BEGIN + """
if me == 1:
    time.sleep(1.0)
made = comm.renew(me)
told(made)
made.close()
"""
    with Job(3, source) as job:
        ends = job.wait()
    assert [row["infos"] for row in said(ends, 0, 1, 2)] == [[0, 1, 2]] * 3


@pytest.mark.parametrize("stopped", [0, 2])
def test_who_does_not_call_is_named_then_left_out_and_cannot_come_back(stopped: int) -> None:
    """Validity, Fencing: also rank 0, which has the coordinator."""
    source = BEGIN + f"""
made_of = sorted({{0, 1, 2}} - {{{stopped}}})
comm.barrier()
if me == {stopped}:
    note("ready")
    await_note("go on")
    try:
        comm.renew("late", timeout=60)
    except hocket.PeerLostError as error:
        print(json.dumps([error.ranks, "a member has excluded it" in str(error)]))
    for rank in made_of:    # they see that it lives
        await_note(f"told {{rank}}")
    sys.exit()
await_note("stopped")
try:
    made, missing = comm.renew(me, timeout=4), None
except hocket.TimeoutError as error:
    made, missing = comm.renew(me, without=[{stopped}]), error.missing
told(made, missing=missing)
made.barrier()
note("go on")
time.sleep(0.3)
told(made, missing=missing)
note(f"told {{me}}")
made.close()
"""
    with Job(3, source) as job:
        wait_for(job, "ready")
        job.signal(stopped, signal.SIGSTOP)
        mark(job, "stopped")
        wait_for(job, "go on")
        job.signal(stopped, signal.SIGCONT)
        ends = job.wait()
    left = [rank for rank in range(3) if rank != stopped]
    rows = said(ends, *left)
    assert [stopped] in [row["missing"] for row in rows]
    for row in rows:  # one may hear in the last moment that the other has excluded it
        assert row["missing"] in ([stopped], None) and (row["infos"], row["lost"]) == (left, [])
        assert row["previous_lost"] == {str(stopped): "excluded"}
    assert said(ends, stopped) == [[[stopped], True]]


def test_a_loss_while_the_next_generation_meets_begins_it_again() -> None:
    """Ranks die when they have agreed, before they meet: the new rank 0, and another."""
    for victims in ([1], [3], [1, 2]):
        source = BEGIN + f"""
from hocket.control.elastic.meeting import MeetNext
class Dies(MeetNext):
    def meet(self):
        if me in {victims}:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().meet()
import hocket.collectives.elastic.elastic as elastic
elastic.MeetNext = Dies
comm.barrier()
note(f"past {{me}}")
if me == 0:
    for other in range(5):
        await_note(f"past {{other}}")
    die_in_calls(comm)
until_lost(comm)
made = comm.renew(me)
told(made)
made.close()
"""
        with Job(5, source) as job:
            ends = job.wait()
        left = [rank for rank in range(1, 5) if rank not in victims]
        for row in said(ends, *left):
            assert row["infos"] == left and row["previous"] == left and row["generation"] >= 2, row
            assert row["previous_lost"] == {str(rank): "dead" for rank in (0, *victims)}


def test_least_is_waited_for() -> None:
    source = BEGIN + """
comm.barrier()
if me == 2:
    die_in_calls(comm)
until_lost(comm)
try:
    comm.renew(least=3, timeout=4)
except hocket.TimeoutError as error:
    assert not error.missing, error.missing
told(comm.renew(least=2))
"""
    with Job(3, source) as job:
        ends = job.wait()
    assert {row["size"] for row in said(ends, 0, 1)} == {2}


def test_who_leaves_is_gone_and_not_lost() -> None:
    source = BEGIN + """
comm.barrier()
if me == 1:
    comm.reporter.members.world.elastic.mesh.close()
    comm.ending.drop()
    time.sleep(0.3)
    sys.exit()
made = comm.renew(me)
told(made)
made.close()
"""
    with Job(3, source) as job:
        ends = job.wait()
    for row in said(ends, 0, 2):
        assert row["infos"] == [0, 2] and row["lost"] == [] and row["previous_lost"] == {"1": "left"}


def test_nothing_is_left_behind_by_a_generation() -> None:
    source = BEGIN + """
def held():
    return len(os.listdir("/proc/self/fd")), threading.active_count()
for _ in range(3):
    comm = comm.renew(me)
    comm.allreduce(np.ones(100000))
comm.barrier()
before = held()
for _ in range(6):
    comm = comm.renew(me)
    comm.allreduce(np.ones(100000))
comm.barrier()
until = time.monotonic() + 20
while not held() <= before and time.monotonic() < until:
    time.sleep(0.05)
after = held()
assert after <= before, (before, after)
told(comm)
comm.close()
"""
    with Job(2, source) as job:
        ends = job.wait()
    assert [row["generation"] for row in said(ends, 0, 1)] == [9, 9]


def test_a_job_that_is_not_elastic_says_so() -> None:
    source = """
import hocket
comm = hocket.init()
try:
    comm.renew()
except hocket.ArgumentError as error:
    print("not elastic" in str(error), comm.generation, comm.waiting)
comm.close()
"""
    with Job(2, source) as job:
        assert [end.out.strip() for end in job.wait()] == ["True 0 0"] * 2


def test_all_ranks_are_elastic_or_none_is() -> None:
    source = """
import os, hocket
try:
    hocket.init(elastic=os.environ["HOCKET_RANK"] == "1")
except hocket.ArgumentError as error:
    print("only ranks [1] are elastic" in str(error))
"""
    with Job(2, source) as job:
        assert [end.out.strip() for end in job.wait()] == ["True"] * 2


def test_what_a_member_says_as_soon_as_it_is_reached_is_heard() -> None:
    """Also where the thread that has dialled is slow to say so: the leader's words come at once, and only once."""
    source = """
import threading, time
from hocket.control.reactor import Reactor
soon = Reactor.soon
def slow(self, call):
    soon(self, call)
    if threading.current_thread().name == "hocket-dial":
        time.sleep(0.3)
Reactor.soon = slow
""" + BEGIN + """
made = comm.renew(me, timeout=30)
told(made)
made.close()
"""
    with Job(3, source) as job:
        assert [row["infos"] for row in said(job.wait(), 0, 1, 2)] == [[0, 1, 2]] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="time namespaces need root")
def test_ranks_in_different_time_namespaces_are_one_job() -> None:
    """Each sees another start time of the other; that one has died is proven all the same."""
    source = BEGIN + """
comm = comm.renew()
time.sleep(0.3)
assert comm.size == 3 and not comm.lost and not comm.previous_lost
comm.barrier()
if me == 1:
    die_in_calls(comm)
until_lost(comm)
told(comm.renew())
"""
    apart = ["unshare", "--time", "--boottime", "100000", "--monotonic", "100000", "--fork", "--kill-child"]
    with Job(3, source, prefix={1: apart, 2: apart}) as job:
        rows = said(job.wait(), 0, 2)
    assert [row["previous_lost"] for row in rows] == [{"1": "dead"}] * 2


@pytest.mark.parametrize("newcomers", [0, 1])
def test_a_generation_that_does_not_begin_in_time_blames_no_member(newcomers: int) -> None:
    """All have called, or there would be none.  Where connections broke all the time, each named all others, and a crew
    went on without those that its members named."""

    def make(*given: Any) -> Any:
        raise hocket.TimeoutError("exchange 7 was not complete", [0, 1, 2, 3][: 3 + newcomers])

    elastic: Any = Elastic(make)
    try:
        elastic.mesh = SimpleNamespace(callbacks=[], met=0)
        elastic._previous = (0, 1, 2, None)[: 3 + newcomers]
        before, now = (
            Generation(number, [Seat(f"uid {i}", [], "host", i, 0) for i in range(size)], "uid 1")
            for number, size in ((0, 3), (1, 3 + newcomers))
        )
        why = "1 newcomers" if newcomers else "did not begin in time"
        with pytest.raises(hocket.TimeoutError, match=why) as error:
            elastic._meet(now, time.monotonic(), "rank 1", before, 4.0)
        assert error.value.missing == ()
        if newcomers:
            assert elastic._meet(now, time.monotonic() + 9, "rank 1", before, 4.0) == {"uid 3"}
    finally:
        elastic.reactor.close()


def test_who_has_lost_rank_0_hears_of_others_by_the_members_connections() -> None:
    """Rank 0 would tell.  A rank that a cable had cut off waited for a dead one until its call's limit, and all others,
    in renew(), for that rank."""
    over = threading.Event()

    def waits(comm: hocket.Communicator) -> str:
        world: Any = comm.world
        if comm.rank != 1:
            over.wait(60)
            return ""
        reactor = SimpleNamespace(soon=lambda call: call())
        world.elastic = SimpleNamespace(unreached=lambda number: {2}, renewing=lambda number: {}, reactor=reactor)
        try:
            world.session._member.ended = "its host does not answer"
            with pytest.raises(hocket.PeerLostError, match="rank 2 is gone.*rank 0 is lost, too") as error:
                comm.recv(np.empty(1), 2, timeout=60)
            assert error.value.ranks == (2,)
            return "told"
        finally:
            world.elastic, world.session._member.ended = None, ""
            over.set()

    assert hocket.local_world(3).run(waits)[1] == "told"
