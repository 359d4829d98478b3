"""Lanes: an order of calls of their own, and the urgent ones first."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest

import hocket
from support import jobs
from support.cases import more

OVERTAKES = """
    import json, time, hocket, numpy as np
    comm = hocket.init()
    urgent, bulk = comm.lane("urgent", priority=1), np.ones(16 << 20, np.float32)
    assert comm.lane("urgent", priority=1) is urgent and urgent.name == "world/1:urgent"
    assert "priority 1" in urgent.explain().splitlines()[0]
    alone, beside, behind = [], [], []
    for found, on in ((alone, None), (beside, urgent), (behind, comm)) * 5:
        small = np.ones(16 << 10, np.float32)
        comm.barrier()
        work = comm.allreduce(bulk, async_op=True) if on else None
        for _ in range(1 if on is comm else 5):
            begin = time.perf_counter()
            (on or comm).allreduce(small)
            found.append(time.perf_counter() - begin)
        assert small[0] in (2.0, 32.0)
        if work:
            work.wait()
    assert {row.lane for row in comm.stats()} == {"", "urgent"}
    print(json.dumps([float(np.median(each)) for each in (alone, beside, behind)]))
"""


@pytest.mark.parametrize("transport", ["shm", *more("tcp")])
def test_a_small_call_overtakes_a_large_one(transport: str) -> None:
    """Behind it on the same communicator, it takes a hundred times longer."""
    for out in jobs.run(2, OVERTAKES, HOCKET_TRANSPORT=transport):
        alone, beside, behind = json.loads(out)
        assert beside < behind / 10, (alone, beside, behind)


OPPOSITE = """
    import hocket, numpy as np
    comm = hocket.init(timeout=60)
    lanes = [comm.lane(name, priority) for name, priority in (("a", 0), ("b", 3), ("c", -2))]
    x = [np.full(300_000 + i, i + 1.0) for i in range(3)]
    for turn in range(20):
        order = range(3) if (comm.rank + turn) % 2 else reversed(range(3))
        works = [lanes[i].allreduce(x[i], out=np.empty_like(x[i]), async_op=True) for i in order]
        for work in works:
            total = work.result()
            assert total[0] in (2.0, 4.0, 6.0) and (total == total[0]).all()
    print("done")
"""


@pytest.mark.parametrize("transport", ["tcp", *more("shm")])
def test_lanes_in_opposite_order(transport: str) -> None:
    assert jobs.run(2, OPPOSITE, HOCKET_TRANSPORT=transport) == ["done\n"] * 2


BUSY_ELSEWHERE = """
    import threading, time, hocket, numpy as np
    comm = hocket.init(timeout=60)
    other, ended = comm.lane("other"), threading.Event()

    def traffic():
        x = np.ones(1 << 20, np.float32)
        while other.allreduce(np.array([float(ended.is_set())]), "max", async_op=True).result()[0] == 0:
            other.allreduce(x, async_op=True).wait()

    thread = threading.Thread(target=traffic)
    thread.start()
    began = time.monotonic()
    try:
        comm.recv(np.zeros(1), 1 - comm.rank, timeout=0.6)    # nobody sends
    except hocket.TimeoutError:
        print("over", time.monotonic() - began < 30)
    ended.set()
    thread.join()
"""


def test_a_limit_counts_while_other_lanes_move() -> None:
    assert jobs.run(2, BUSY_ELSEWHERE) == ["over True\n"] * 2


def test_ranks_that_disagree() -> None:
    def priorities(comm: hocket.Communicator) -> str:
        try:
            comm.lane("x", comm.rank)
        except hocket.ArgumentError as error:
            return str(error)
        return ""

    for r, said in enumerate(hocket.local_world(2).run(priorities)):
        assert said == f"lane('x') has priority {r} here and {1 - r} on rank {1 - r}"

    def calls(comm: hocket.Communicator) -> str:
        import numpy as np

        lane = comm.lane("x", 1)
        try:
            lane.allreduce(np.zeros(3 + comm.rank), timeout=60)
        except hocket.MismatchError as error:
            return str(error)
        return ""

    for said in hocket.local_world(2).run(calls):
        assert "'world/1:x'" in said and re.search(r"float64\[3\].*float64\[4\]", said, re.S), said


def test_many_lanes_in_one_exchange() -> None:
    """All lanes take as many calls of this communicator as one lane."""

    def made(comm: hocket.Communicator) -> tuple[list[str], int, int, bool]:
        import numpy as np

        def calls() -> int:
            return sum(row.calls for row in comm.stats() if row.collective == "allgather" and not row.lane)

        before = calls()
        comm.lane("first", 7)
        between = calls()
        lanes = comm.lanes({f"lane {i}": 500 - i for i in range(100)} | {"first": 7})
        after = calls()
        assert [lane.membership.priority for lane in lanes] == [*range(500, 400, -1), 7]
        sums = [lane.allreduce(np.ones(3), async_op=True) for lane in reversed(lanes)]
        assert all((work.result() == comm.size).all() for work in sums)
        again = comm.lanes({lane.name.split(":")[1]: lane.membership.priority for lane in lanes})
        return [lane.name for lane in lanes[::50]], between - before, after - between, again == lanes

    names = ["world/2:lane 0", "world/52:lane 50", "world/1:first"]
    assert hocket.local_world(3).run(made) == [(names, 2, 2, True)] * 3


def test_ranks_that_make_other_lanes() -> None:
    """The short text of a call shows six names: where these are equal, the call itself finds what differs."""

    def differ(comm: hocket.Communicator) -> list[str]:
        said, same = [], dict.fromkeys("tuvwxyz", 0)
        for lanes in ([{"a": 0}, {"b": 0}], [{"c": 1}, {"c": 2}], [{"d": 0, "e": 1}, {"d": 0, "e": 2}]):
            with pytest.raises(hocket.ArgumentError) as error:
                comm.lanes(same | lanes[comm.rank])
            said.append(str(error.value))
        with pytest.raises(hocket.ArgumentError) as error:
            comm.lanes(same if comm.rank else same | {"f": 3})
        return [*said, str(error.value)]

    name, one, priority, count = hocket.local_world(2).run(differ)[0]
    within = "lanes(['t', 'u', 'v', 'w', 'x', 'y', ...])"
    assert name == f"{within}: rank 1 makes 'b' where this rank makes 'a'"
    assert one == f"{within} has priority 1 here and 2 on rank 1: 'c'"
    assert priority == f"{within} has priority 1 here and 2 on rank 1: 'e'"
    assert count == f"{within}: rank 1 makes 7 lanes, this rank 8"


CLOSED = """
    import gc, hocket, weakref
    comm = hocket.init()
    names, gone = set(), []
    for i in range(20):
        for name in ("same", f"new {i}"):
            with comm.lane(name, i) as lane:
                assert lane.allreduce(1) == comm.size and lane is comm.lane(name, i)
                lane.barrier(async_op=True).wait()
                assert {row.lane for row in comm.stats()} >= {name}
                names.add(lane.name)
                gone.append(weakref.ref(lane))
    del lane
    last = comm.lane("same")
    gc.collect()
    print(len(names), sum(ref() is not None for ref in gone), {row.lane for row in comm.stats()} <= {"", "same"})
    comm.close()
    try:
        comm.lane("same")
    except hocket.ArgumentError as error:
        print(error)
"""


@pytest.mark.parametrize("transport", ["shm", *more("tcp")])
def test_a_closed_lane_is_forgotten_and_its_name_is_free(transport: str) -> None:
    said = "40 0 True\ncommunicator 'world' is closed\n"
    assert jobs.run(2, CLOSED, HOCKET_TRANSPORT=transport) == [said] * 2


def test_wrong_arguments() -> None:
    def wrong(comm: hocket.Communicator) -> list[str]:
        said = []
        comm.lane("made", 2)
        for name, priority in (("", 0), (3, 0), ("x", 1001), ("x", 0.5), ("made", 1)):
            with pytest.raises(hocket.ArgumentError) as error:
                comm.lane(name, priority)  # type: ignore[arg-type]
            said.append(str(error.value))
        return said

    (said,) = hocket.local_world(1).run(wrong)
    assert said[-1] == "lane('made') was made with priority 2, not 1" and "between -1000 and 1000" in said[2]


def test_a_lane_is_closed_when_its_calls_under_way_have_ended() -> None:
    """Others need them: here longer than close() waits for the others."""

    def program(comm: hocket.Communicator) -> list[float]:
        lane, arrays = comm.lane("x"), [np.full(100, comm.rank + 1.0) for _ in range(4)]
        if comm.rank:
            time.sleep(1.5)
        works = [lane.allreduce(x, async_op=True) for x in arrays]
        lane.close(timeout=0.5)
        assert all(work.done() for work in works)
        return [float(x[0]) for x in arrays]

    with hocket.local_world(2) as world:
        assert world.run(program) == [[3.0] * 4] * 2
