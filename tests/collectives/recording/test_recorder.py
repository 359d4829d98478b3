"""Traces of calls in the recorder of their process, and its readers."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.collectives.recording import dump, recorder
from hocket.collectives.recording.processes import recorders
from hocket.observe.files.reading import read as read_trace
from hocket.observe.findings import find
from hocket.observe.sentences import summary
from hocket.recording import NOBODY, Kind, Recorded, Ring
from hocket.tools import top
from support.jobs import run

x = np.ones(2)


def ring_of(part: Recorded, kind: str = "collectives", comm: str = "world") -> Ring:
    return next(ring for ring in part.rings if (ring.kind, ring.comm) == (kind, comm))


def recorded(function: object, size: int = 2) -> list[Recorded]:
    """Every rank's part after it has called this.  Other tests may have filled this process's rings and texts."""
    gc.collect()
    recorder.forked()

    def rank(comm: hocket.Communicator) -> Recorded:
        function(comm)  # type: ignore[operator]
        return comm.recorder().recorded()

    with hocket.local_world(size) as world:
        return world.run(rank)


def test_every_call_is_there_with_what_it_was() -> None:
    def calls(comm: hocket.Communicator) -> None:
        for _ in range(100):
            comm.allreduce(x)
        comm.broadcast(x, root=1)

    for part in recorded(calls):
        ring = ring_of(part)
        kinds = Counter(ring.records["kind"].tolist())
        assert kinds[Kind.CALL] == kinds[Kind.DONE] and kinds[Kind.CALL] + kinds[Kind.CALLED] == 101
        assert kinds[Kind.CALLED] >= 10, "a short call that is not timed and does not wait takes one record"
        begun = ring.records[np.isin(ring.records["kind"], (Kind.CALL, Kind.CALLED))]
        assert begun["seq"].tolist() == list(range(1, 102)) and ring.lost == 0 and ring.members == (0, 1)
        whats = [part.what(int(number)) for number in begun["what"]]
        assert [each.collective for each in whats] == ["allreduce"] * 100 + ["broadcast"]
        assert {(each.dtype, each.shape, each.dest) for each in whats} == {("float64", (2,), None)}
        assert whats[0].text == "allreduce(float64[2], op='sum')" and "test_recorder.py:" in whats[0].site
        assert (np.diff(ring.records["ns"].astype(np.int64)) >= 0).all() and begun["bytes"].tolist()[0] == 16


def test_the_newest_stay_when_the_ring_is_full() -> None:
    def calls(comm: hocket.Communicator) -> None:
        for _ in range(3000):
            comm.allreduce(x)

    for part in recorded(calls):
        ring = ring_of(part)
        assert len(ring.records) == 1023 and ring.records["seq"][-1] == 3000 and ring.lost >= 1976


def test_a_long_wait_names_who_is_waited_for() -> None:
    def late(comm: hocket.Communicator) -> None:
        comm.allreduce(x)
        for work in (False, True):
            if comm.rank == 2:
                time.sleep(0.5)
            done = comm.allgather(x, async_op=work)
            if work:
                done.wait()

    for part in recorded(late, 3)[:2]:
        records = ring_of(part).records
        waits = records[np.isin(records["kind"], (Kind.WAIT_RECV, Kind.WAIT_SEND))]
        moves = records[records["kind"] == Kind.MOVED]
        for seq in (2, 3):
            assert 2 in waits["peer"][waits["seq"] == seq], (seq, records)
            assert moves["bytes"][moves["seq"] == seq].max() > 30e6, (seq, records)


def test_marks_and_failures_are_there() -> None:
    def fails(comm: hocket.Communicator) -> None:
        comm.mark("epoch", 3)
        comm.mark("epoch", 4)
        with pytest.raises(hocket.TimeoutError):
            if comm.rank == 0:
                comm.allreduce(x, timeout=0.1)
            while comm.reporter.state.verdict is None:
                time.sleep(0.01)
            comm.barrier()

    for part in recorded(fails):
        own = ring_of(part, "rank", "").records
        marks = own[own["kind"] == Kind.MARK]
        found = [(part.what(int(each["what"])).text, int(each["bytes"])) for each in marks]
        assert found == [("epoch", 3), ("epoch", 4)]
        assert Kind.VERDICT in own["kind"]
        assert part.facts.rank == 1 or Kind.FAIL in ring_of(part).records["kind"]


@pytest.mark.parametrize(("name", "value", "why"), [("", 0, "a string"), (3, 0, "a string"), ("a", -1, "2\\*\\*63")])
def test_marks_of_another_kind_are_refused(name: object, value: int, why: str) -> None:
    with hocket.local_world(1) as world, pytest.raises(hocket.ArgumentError, match=why):
        world.run(lambda comm: comm.mark(name, value))


def test_messages_are_recorded_by_their_tag() -> None:
    def messages(comm: hocket.Communicator) -> None:
        if comm.rank == 0:
            comm.send(x, 1, tag=5)
        else:
            comm.recv(np.empty(2), 0, tag=5)

    for part, verb in zip(recorded(messages), ("send", "recv"), strict=True):
        ring = ring_of(part, "messages")
        assert set(ring.records["seq"].tolist()) == {5}
        assert part.what(int(ring.records["what"][-1])).text.startswith(verb)


def test_a_message_that_others_overtake_ends_in_a_record_of_its_own() -> None:
    """While it waits, other threads' messages fill the ring more than once; its first record is another's by then."""

    def calls(comm: hocket.Communicator) -> None:
        peer, out = comm.rank ^ 1, np.zeros(1)

        def others() -> None:
            y = np.zeros(1)
            for _ in range(1200):
                if comm.rank == 0:
                    comm.send(y, peer, 1)
                else:
                    comm.recv(y, peer, 1, async_op=True).wait()
            if comm.rank == 0:
                comm.recv(y, peer, 2)
                comm.send(y, peer, 99)
            else:
                comm.send(y, peer, 2)

        for _ in range(40):  # the first ones are timed, and end in a record of their own anyway
            comm.recv(out, peer) if comm.rank else comm.send(out, peer)
        if comm.rank == 0:
            others()
            return
        beside = threading.Thread(target=others)
        waits = threading.Thread(target=lambda: comm.recv(out, peer, 99))
        waits.start()
        time.sleep(0.02)
        beside.start()
        beside.join()
        waits.join()

    ring = ring_of(recorded(calls)[1], "messages")
    ended = ring.records[ring.records["seq"] == 99]
    assert ended["kind"].tolist()[-1:] == [Kind.DONE] and Kind.CALLED not in ring.records["kind"]


@pytest.mark.usefixtures("empty_recorder")
def test_rings_are_bounded_and_used_again() -> None:
    """A close gives rings back, though the communicator is still at hand: a fresh process has 64 for both."""
    kept = []

    def many(comm: hocket.Communicator) -> tuple[int, int]:
        kept.extend(made := [comm.dup() for _ in range(70)])
        for each in made:
            each.allreduce(x)
        before = comm.recorder().recorded()
        for each in made:
            each.close()
        for _ in range(40):
            with comm.dup() as each:  # when the garbage collector comes to what nobody closes is not known
                each.allreduce(x)
        return before.facts.refused, comm.recorder().recorded().facts.refused

    for _ in range(70):
        with hocket.local_world(1) as world:
            kept.append(*world)
            world.run(lambda comm: comm.allreduce(x))
    with hocket.local_world(2) as world:
        refused, after = world.run(many)[0]
    assert refused > 0 and after == refused, "64 rings are not enough, until they are free again"


def test_texts_are_bounded_and_what_had_no_room_is_told_everywhere(tmp_path: Path) -> None:
    """Calls are still named, by their collective; marks have no name."""
    gc.collect()
    recorder.forked()
    path = str(tmp_path / "t.pftrace")

    def marks(comm: hocket.Communicator) -> tuple[Recorded, str, str]:
        with comm.trace(path):
            for number in range(6000 * (comm.rank == 1)):
                comm.mark(f"{number:0190}")
            comm.allreduce(np.ones(77))
            comm.barrier()
        comm.allreduce(np.ones(78))
        comm.barrier()
        looked, job = top.look(), comm.world.recorder.job
        shown = top.as_text(looked._replace(jobs={job: looked.jobs[job]}))
        return comm.recorder().recorded(), shown, dump.text(recorders(job))

    with hocket.local_world(2) as world:
        (part, shown, events), _ = world.run(marks)
    told = f"{part.facts.unnamed} texts had no room"
    assert part.facts.unnamed > 1000 and part.facts.overflow == told
    calls = {part.what(int(number)).text for ring in part.rings for number in ring.records["what"]}
    assert "allreduce(...)" in calls and "allreduce(float64[78], op='sum')" not in calls, calls
    assert f"; {told}" in shown and f"; {told}" in events
    said = "\n".join(summary(find(read_trace(path))))
    assert re.search(r"Rank [01] could not record everything: \d+ texts had no room\.", said), said


OFF = """
import hocket, numpy as np
comm = hocket.init()
comm.allreduce(np.ones(2))
comm.mark("a")
try:
    comm.recorder()
except hocket.ArgumentError as error:
    print("HOCKET_RECORDER is 0" in str(error))
from hocket.collectives.recording.processes import recorders
import os
print(any(os.getpid() == each.pid for each in recorders()))
comm.close()
"""


def test_nothing_is_recorded_if_nobody_wants_it() -> None:
    assert run(2, OFF, HOCKET_RECORDER="0") == ["True\nFalse\n"] * 2


FORK = """
import os, hocket, numpy as np
comm = hocket.init()
comm.allreduce(np.ones(2))
def marks():
    return len(comm.recorder().recorded().rings[0].records)

before = marks()
child = os.fork()
if child == 0:
    comm.mark("child")
    try:
        comm.recorder()
    except hocket.ArgumentError:
        with hocket.local_world(1) as world:
            world.run(lambda each: each.mark("own"))
            code = world.run(lambda each: each.recorder().recorded().facts.pid == os.getpid())
        os._exit(7 if code[0] else 8)
    os._exit(9)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, marks() - before)
comm.close()
"""


def test_a_fork_writes_into_a_recorder_of_its_own() -> None:
    assert run(1, FORK) == ["7 0\n"]


def test_recorders_of_nobody_are_not_listed() -> None:
    assert recorders("no such job") == []
    fd = os.memfd_create("hocket-recorder")
    try:
        os.write(fd, b"hocketR\0" + bytes(20000))
        assert all(each.parts for each in recorders())
    finally:
        os.close(fd)


def test_peers_of_no_communicator_are_nobody() -> None:
    part = recorded(lambda comm: comm.barrier())[0]
    assert ring_of(part).world_rank(NOBODY) is None and ring_of(part).world_rank(5) is None


def test_of_many_ranks_that_fail_at_once_one_writes_the_file(tmp_path: Path) -> None:
    """The others do not read all records first, to find that it is there: of 64 ranks that took seconds."""
    path = str(tmp_path / "what")

    def content() -> str:
        with pytest.raises(FileExistsError):
            dump.write(path, lambda: "of a second reader")
        return "first"

    dump.write(path, content)
    assert Path(path).read_text() == "first" and os.listdir(tmp_path) == ["what"]
    with pytest.raises(ZeroDivisionError):
        dump.write(f"{path} 2", lambda: str(1 / 0))
    assert os.listdir(tmp_path) == ["what"]
