"""Newcomers: they wait in the lobby, and come in at the members' next generation; what goes wrong is told there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from support.elastic_ranks import HOST, Newcomer, mark, said, wait_for
from support.jobs import Job
from support.worlds import PATH

SECRET = "a secret of the tests of newcomers, 1"
TELL = """
total = comm.allreduce(np.full(1000, 100.0))
assert (total == total[0]).all()
print(json.dumps([comm.rank, comm.size, comm.generation, comm.infos, comm.previous_ranks, total[0],
                  [lane.membership.priority for lane in comm._open_lanes().values()]]))
comm.close()
"""


@pytest.mark.parametrize("secret", [SECRET, ""])
def test_newcomers_come_in_behind_the_members(secret: str) -> None:
    """Over TCP with a secret, else over a Unix socket; lanes are there for them too."""
    source = HOST + """
comm.lane("urgent", priority=3)
until_waiting(2)
made = comm.renew({"step": me})
told(made)
made.close()
"""
    with Job(2, source, env={"HOCKET_SECRET": secret}) as job:
        news = [
            Newcomer(job, f"comm = hocket.init(join=door, info='new {i}', timeout=60)" + TELL, HOCKET_SECRET=secret)
            for i in range(2)
        ]
        lines = sorted(json.loads(each.end()[-1]) for each in news)
        ends = job.wait()
    infos = [{"step": 0}, {"step": 1}, *lines[0][3][2:]]
    assert sorted(infos[2:]) == ["new 0", "new 1"]
    assert [line[0] for line in lines] == [2, 3]
    for line in lines:
        assert line[1:] == [4, 1, infos, [0, 1, None, None], 203.0, [3]]
    for row in said(ends, 0, 1):
        assert (row["size"], row["infos"], row["previous"]) == (4, infos, [0, 1, None, None])


def test_who_is_new_takes_part_in_what_follows() -> None:
    """The member that it waited with dies, then rank 0; it goes on with the others, and then alone."""
    source = HOST + """
until_waiting(1)
comm = comm.renew()
comm.barrier()
note("past 1" if me else "past 0")
if me == 0:
    await_note("past 1")    # who may be in the barrier still
    await_note("newcomer of 3")
    os.kill(os.getpid(), signal.SIGKILL)
until_lost(comm)
comm = comm.renew()
comm.barrier()
await_note("newcomer of 2")
os.kill(os.getpid(), signal.SIGKILL)
"""
    new = """
comm = hocket.init(join=door, timeout=60)
sizes = [comm.size]
def past():
    comm.barrier()
    open(os.path.join(directory, f"newcomer of {comm.size}"), "w").close()
past()
for _ in range(2):
    try:
        while True:
            comm.allreduce(np.ones(100000))
    except hocket.PeerLostError:
        comm = comm.renew()
        sizes.append(comm.size)
        if comm.size > 1:
            past()
print(sizes, comm.generation)
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        newcomer = Newcomer(job, new, HOCKET_SECRET=SECRET)
        assert newcomer.end() == ["[3, 2, 1] 3"]


def test_members_that_let_nobody_in() -> None:
    source = HOST + """
until_waiting(1)
made = comm.renew(admit=me != 1)
assert (made.size, made.waiting) == (2, 1)
made.barrier()
made = made.renew()
told(made)
made.close()
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        newcomer = Newcomer(job, "comm = hocket.init(join=door, timeout=60)" + TELL, HOCKET_SECRET=SECRET)
        assert json.loads(newcomer.end()[-1])[:3] == [2, 3, 2]
        assert [row["size"] for row in said(job.wait(), 0, 1)] == [3, 3]


def test_a_store_tells_newcomers_where_the_job_is() -> None:
    """Without a secret the store has the key too.  The newcomer may be there before either is written."""
    source = """
import os, time, hocket
from hocket.hosting import FolderStore
while not os.path.exists(os.path.dirname(__file__) + "/come"):
    time.sleep(0.005)
store = FolderStore(os.path.dirname(__file__) + "/store")
comm = hocket.init(int(os.environ["HOCKET_RANK"]), 2, store=store, elastic=True)
while not comm.waiting:
    time.sleep(0.005)
comm.barrier()
made = comm.renew()
print(made.size)
made.close()
"""
    new = """
import os, sys, hocket
from hocket.hosting import FolderStore
open(sys.argv[1] + "/come", "w").close()
comm = hocket.init(join=FolderStore(sys.argv[1] + "/store"), timeout=60)
print(comm.rank)
comm.close()
"""
    with Job(2, source, env={"HOCKET_SECRET": ""}) as job:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
        command = [sys.executable, "-c", new, job.directory]
        ended = subprocess.run(command, env={**keep, "PYTHONPATH": PATH}, capture_output=True, text=True, timeout=60)
        assert ended.stdout == "2\n", ended.stderr
        assert [end.out for end in job.wait()] == ["3\n", "3\n"]


def refused(source: str, **env: str) -> tuple[str, list[Any]]:
    """A newcomer's answer, and the output of the members, who noticed nothing."""
    host = HOST + """
await_note("over")
comm = comm.renew()
told(comm)
comm.close()
"""
    text = f"""
try:
    {source}
except hocket.Error as error:
    print(type(error).__name__, str(error).replace(chr(10), " "))
"""
    secret = {"HOCKET_SECRET": SECRET}
    with Job(2, host, env={**secret, "HOCKET_MOST": "2"}) as job:
        (line,) = Newcomer(job, text, **{**secret, **env}).end()
        mark(job, "over")
        return line, said(job.wait(), 0, 1)


@pytest.mark.parametrize(("source", "wanted", "env"), [
    ("hocket.init(join=door, timeout=8)", ["AuthError", "HOCKET_SECRET"], {"HOCKET_SECRET": f"not {SECRET}"}),
    ("hocket.init(join=door, timeout=60)", ["ArgumentError", "2 members", "limit"], {}),
    ("hocket.init(join='tcp:127.0.0.1:9', timeout=0.5)", ["TimeoutError", "0.5 s", "nothing listens there"], {}),
    ("hocket.init(join=door, timeout=60)", ["ArgumentError", "HOCKET_SECRET"], {"HOCKET_SECRET": ""}),
    ("hocket.init(join=door, info=object(), timeout=60)", ["ArgumentError", "JSON"], {}),
])  # fmt: skip
def test_what_goes_wrong_is_told_to_the_newcomer_alone(source: str, wanted: list[str], env: dict[str, str]) -> None:
    line, rows = refused(source, **env)
    assert all(word in line for word in wanted), line
    assert [row["size"] for row in rows] == [2, 2]


def test_a_member_dies_while_a_newcomers_first_generation_meets() -> None:
    """The next generation is smaller than the one that the newcomer was let into; it is as new in that one."""
    source = HOST + """
until_waiting(1)
if me == 2:
    import hocket.collectives.elastic.elastic as elastic
    class Dies(elastic.MeetNext):
        def meet(self):
            os.kill(os.getpid(), signal.SIGKILL)
    elastic.MeetNext = Dies
made = comm.renew(timeout=60)
told(made)
made.close()
"""
    with Job(3, source, env={"HOCKET_SECRET": SECRET}) as job:
        newcomer = Newcomer(job, "comm = hocket.init(join=door, timeout=60)" + TELL, HOCKET_SECRET=SECRET)
        line = json.loads(newcomer.end()[-1])
        rows = said(job.wait(), 0, 1)
    assert line[:3] == [2, 3, 2] and line[4] == [0, 1, None]
    assert [(row["size"], row["generation"], row["previous"]) for row in rows] == [(3, 2, [0, 1, None])] * 2


def test_a_newcomer_that_is_killed_in_the_lobby_is_forgotten() -> None:
    source = HOST + """
until_waiting(1)
if me == 0:
    note("there")
while comm.waiting:
    time.sleep(0.005)
comm.barrier()
made = comm.renew()
told(made)
made.close()
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        newcomer = Newcomer(job, "hocket.init(join=door, timeout=60)", HOCKET_SECRET=SECRET)
        wait_for(job, "there")
        newcomer.process.kill()
        newcomer.process.communicate()
        assert [row["size"] for row in said(job.wait(), 0, 1)] == [2, 2]


def test_a_newcomer_that_is_stopped_before_it_has_met_the_others_is_left_out() -> None:
    """Nobody has worked with it yet; so it does not hold them up, and learns it when it goes on."""
    source = HOST + """
import hocket.collectives.elastic.elastic as elastic
elastic.NEWCOMERS = 1.0
until_waiting(1)
began = time.monotonic()
made = comm.renew(timeout=60)
assert time.monotonic() - began < 20
told(made)
note("met")
await_note("over")
made.close()
"""
    new = """
import signal
from hocket.control.elastic.meeting import MeetNext
class Stops(MeetNext):
    def meet(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().meet()
import hocket.collectives.elastic.elastic as elastic
elastic.MeetNext = Stops
try:
    hocket.init(join=door, timeout=60)
except hocket.PeerLostError as error:
    print("without this process" in str(error))
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        newcomer = Newcomer(job, new, HOCKET_SECRET=SECRET)
        wait_for(job, "met")
        newcomer.process.send_signal(signal.SIGCONT)
        assert newcomer.end() == ["True"]
        mark(job, "over")
        assert [row["size"] for row in said(job.wait(), 0, 1)] == [2, 2]


def test_a_full_job_takes_who_replaces_a_dead_member_before_it_renews() -> None:
    source = HOST.replace("elastic=True", "elastic=True, most=2") + """
if me == 1:
    await_note("door")
    os.kill(os.getpid(), signal.SIGKILL)
while not comm.lost:
    time.sleep(0.005)
note("lost")
until_waiting = None
while not comm.waiting:
    time.sleep(0.005)
told(comm.renew(me))
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        wait_for(job, "lost")
        new = Newcomer(job, "comm = hocket.init(join=door, timeout=60)" + TELL, HOCKET_SECRET=SECRET)
        (row,) = said(job.wait(), 0)
        assert json.loads(new.end()[-1])[:2] == [1, 2]
    assert (row["size"], row["previous_lost"]) == (2, {"1": "dead"})
