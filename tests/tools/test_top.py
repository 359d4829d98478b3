"""`hocket top`, and the errors of the ranks that wait, name the rank that hangs and where it is: each kind of hang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hocket.collectives.recording.processes import ProcessRecord
from hocket.collectives.recording.records import Facts, Recorded
from hocket.collectives.recording.standing import Standing, circles, printable
from hocket.tools import top
from support.faulty import wait_for
from support.jobs import Job

RANK = """
import os, pathlib, re, signal, sys, threading, time
import hocket, numpy as np
from hocket.control.protocol import faults
kind = {kind!r}
if kind in ("deadlock", "full_link"):
    faults.GATHER = 2.0     # all ranks answer, if slowly
comm = hocket.init()
x = np.ones(2)
for step in range(3):
    comm.mark("step", step)
    comm.allreduce(x)

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

def c_loop():
    sum(range(10 ** 13))

def deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def full_link():
    time.sleep(60)

pathlib.Path({place!r}, str(comm.rank)).write_text(comm.world.recorder.job)
try:
    if comm.rank == 1:
        globals()[kind]()
    elif kind == "full_link" and comm.rank == 0:
        comm.send(np.empty(2_000_000), 1, timeout={seconds})
    else:
        comm.allreduce(x, timeout={seconds})
except hocket.Error as error:
    print(type(error).__name__, error, flush=True)
    os._exit(0)
"""
WHERE = {
    "stopped": "process {pid} is stopped by a signal; it has finished call 3, allreduce(float64[2], op='sum') at rank",
    "c_loop": "process {pid} is running; it has finished call 3, allreduce(float64[2], op='sum') at rank.py",
    "deadlock": "is not in a call on this communicator, it is at rank.py:",
    "full_link": "is not in a call on this communicator, it is at rank.py:",
}
"""The others' error about rank 1."""


@pytest.mark.parametrize("kind", WHERE)
def test_the_rank_that_hangs_is_named(kind: str, tmp_path: Path) -> None:
    with Job(3, RANK.format(kind=kind, place=str(tmp_path), seconds=5)) as job:
        wait_for(lambda: sum(bool(file.read_text()) for file in tmp_path.iterdir()) == 3, what="files of all")
        name, pids = (tmp_path / "0").read_text(), [process.pid for process in job.processes]
        looked = _when_others_wait(name, pids, "stopped" if kind == "stopped" else "")
        shown, text = json.loads(json.dumps(top.as_json(looked))), top.as_text(looked)
        for rank in (0, 2):
            job.processes[rank].wait(60)
        pid = job.processes[1].pid
        job.signal(1, signal.SIGKILL)
        ends = job.wait(60)
    rows = {row["rank"]: row for row in shown["jobs"][name]}
    assert sorted(rows) == [0, 1, 2] and shown["held_up_by"][name] == [1], shown
    assert rows[1]["marks"] == {"step": 2} and rows[1]["pid"] == pid
    last = rows[1]["standings"][0]
    assert (last["inside"], last["seq"], last["call"]) == (False, 3, "allreduce(float64[2], op='sum')")
    waits = rows[0]["standings"][0]
    assert waits["inside"] and 1 in waits["waits_for"] and waits["sends"] == (kind == "full_link"), waits
    assert f"job {name}: 3 ranks here; the others wait for rank 1" in text, text
    assert "stopped" in rows[1]["state"] or kind != "stopped"
    for rank in (0, 2):
        if kind != "full_link" or rank == 0:
            assert "TimeoutError" in ends[rank].out and "waiting for rank 1" in ends[rank].out, ends[rank]
            assert WHERE[kind].format(pid=pid) in ends[rank].out, ends[rank].out
        file = ends[rank].out.partition("did last: ")[2].strip()
        content = Path(file).read_text()
        assert content.startswith("hocket: what 3 ranks did last"), content[:99]
        assert f"rank 1 of 3, pid {pid} on" in content, content[:999]


def _when_others_wait(name: str, pids: list[int], state: str) -> top.Jobs:
    """Look until ranks 0 and 2 of the job wait inside a call and some rank is in this state, or for 30 s."""
    until = time.monotonic() + 30
    while True:
        looked = top.look(pids)
        rows = looked.jobs.get(name, [])
        there = sum(any(one.inside and one.waits_for for one in row.standings) for row in rows) > 1
        if there and any(state in row.state for row in rows) or time.monotonic() > until:
            return looked
        time.sleep(0.05)


ALONE = """
import os, signal, sys, time
import hocket, numpy as np
comm = hocket.init()
for _ in range(5):
    comm.allreduce(np.ones(2))
if comm.rank == 1:
    {alone}
try:
    comm.allreduce(np.ones(2))
except hocket.Error as error:
    print(type(error).__name__, error, flush=True)
"""
LAST = "it has finished call 5, allreduce(float64[2], op='sum') at rank.py:6 in <module>"
ENDS = {
    "os.kill(os.getpid(), signal.SIGKILL)": (
        "PeerLostError", "rank 1 is gone", f"is dead; {LAST}", "has finished call 5",
    ),
    "sys.exit()": ("PeerLostError", "rank 1 is gone", "it has left (closed this", "call"),
    "comm.broadcast(np.ones(2), root=1)": (
        "MismatchError", "rank 1 called broadcast(float64[2], root=1), first made at rank.py:8 in <module>",
        "rank 0 called allreduce(float64[2], op='sum') at rank.py:10 in <module> (its call number 6)",
        "failed in call 7",
    ),
}  # fmt: skip
"""Rank 1's own acts: the error of the others, what it says, and what the file has of rank 1."""


@pytest.mark.parametrize("alone", ENDS)
def test_the_rank_that_ends_or_calls_something_else_is_named(alone: str, tmp_path: Path) -> None:
    """Also with what a killed one did, as the launcher keeps it."""
    (tmp_path / "rank.py").write_text(ALONE.format(alone=alone))
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "hocket", "run", "-n", "3", "--no-prefix", "--", str(tmp_path / "rank.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    kind, who, where, last = ENDS[alone]
    assert f"{kind} " in ended.stdout and who in ended.stdout and where in ended.stdout, ended
    file = next((tmp_path / f"hocket-events-{os.geteuid()}").glob("*-world-0.txt"))
    assert last in file.read_text().partition("rank 1 of 3, pid ")[2].splitlines()[1]


PRIVATE = """
import pathlib, sys, time
from hocket.collectives.recording import memory
def refuse():
    raise OSError(38, "Function not implemented")
memory.make = refuse
import hocket, numpy as np
comm = hocket.init()
comm.allreduce(np.ones(2))
print(comm.recorder().private, any(len(each.records) for each in comm.recorder().recorded().rings), flush=True)
pathlib.Path({place!r}, str(comm.rank)).touch()
time.sleep(60)
"""


def test_where_such_memory_is_refused_the_rank_goes_on_and_is_counted_among_the_unseen(tmp_path: Path) -> None:
    with Job(1, PRIVATE.format(place=str(tmp_path))) as job:
        until = time.monotonic() + 30
        while not list(tmp_path.iterdir()) and time.monotonic() < until:
            time.sleep(0.02)
        looked = top.look()
        pid = job.processes[0].pid
        job.signal(0, signal.SIGKILL)
        (end,) = job.wait(60)
    assert "no memory that other processes can read ([Errno 38] Function not implemented) True" in end.out, end
    assert pid in looked.unseen
    alone = looked._replace(unseen=[pid])  # of many, as other tests' ranks may be, the text names twenty
    assert f"{pid}" in top.as_text(alone).partition("cannot be seen")[2]


def row(**changes: Any) -> top.RankRow:
    standing = Standing("a\x1b[2Jb", "collectives", True, 7, "all\nreduce", "x.py:3", 4.0, (1, 2), True, False)
    made = top.RankRow(0, 12, "sleeping", [standing], {"step": 3}, 10.0, 2e6, "")
    return made._replace(**changes)


def test_names_of_others_do_nothing_to_a_terminal() -> None:
    rows = [row(), row(rank=1, pid=None, state="dead", standings=[])]
    text = top.as_text(top.Jobs({"j\x07ob": rows}, {"j\x07ob": [1]}, [5]))
    assert all(line.isprintable() for line in text.splitlines()), text
    assert "waits for ranks 1, 2 to take what it sends since 4.0 s" in text and "(dead): no call yet" in text
    assert "cannot be seen" in text and printable("a\u202eb") == "a?b"


def test_a_newcomer_is_shown_behind_the_dead_rank_whose_place_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(pid: int | None, state: str) -> ProcessRecord:
        return ProcessRecord(pid, state, [Recorded(Facts(1, 2, "job", pid or 8, "host", "boot", 0, 0, 0), {})])

    monkeypatch.setattr(top, "recorders", lambda among: [found(9, "running"), found(None, "dead")])
    monkeypatch.setattr(top, "without_one", lambda found: [])
    looked = top.look()
    assert [each.pid for each in looked.jobs["job"]] == [None, 9]
    assert "rank 1 (dead)" in top.as_text(looked) and "rank 1 (pid 9, running)" in top.as_text(looked)


def test_the_command_prints_and_ends() -> None:
    command = [sys.executable, "-m", "hocket", "top", "--json"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)
    assert set(shown) == {"jobs", "held_up_by", "wait_for_each_other", "unseen"}


def test_there_may_be_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "recorders", lambda among: [])
    monkeypatch.setattr(top, "without_one", lambda found: [])
    assert top.as_text(top.look()).startswith("no jobs of this user")


def test_the_screen_shows_the_same_and_can_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = pytest.importorskip("hocket.tools.top_screen")
    looks: list[int] = []
    there = top.Jobs({"job": [row()]}, {"job": []}, [])
    monkeypatch.setattr(screen, "EVERY", 0.05)

    async def use() -> str:
        app = screen.Top(lambda: looks.append(1) or there)
        async with app.run_test() as pilot:
            while len(looks) < 2:
                await pilot.pause(0.05)
            text = str(app.query_one("#jobs").render())
            await pilot.press("space")
            before = len(looks)
            await pilot.pause(0.3)
            assert len(looks) == before
            await pilot.press("q")
        return text

    assert "rank 0 (pid 12, sleeping): in call 7" in asyncio.run(use())


CROSSED = """
import hocket, numpy as np, pathlib, sys
comm = hocket.init()
pathlib.Path({place!r}, str(comm.rank)).write_text(comm.world.recorder.job)
try:
    comm.recv(np.ones(3), comm.rank ^ 1, timeout=5)
except hocket.TimeoutError as error:
    print(error.missing, error)
"""


def test_ranks_that_wait_for_each_other_and_the_line_of_a_recv(tmp_path: Path) -> None:
    with Job(4, CROSSED.format(place=str(tmp_path))) as job:
        until, text = time.monotonic() + 60, ""
        while not all(f"{pair} wait" in text for pair in ("0 and 1", "2 and 3")) and time.monotonic() < until:
            time.sleep(0.1)
            there = top.look([each.pid for each in job.processes])
            text = top.as_text(there)
        pid = job.processes[2].pid
        ends = job.wait(60)
    name = (tmp_path / "0").read_text()
    assert f"job {name}: 4 ranks here; ranks 0 and 1 wait for each other; ranks 2 and 3 wait for each other" in text
    assert "in tag 0, recv(float64[3], source=1) at rank.py:6 in <module>, waits for rank 1 since" in text, text
    assert list(there.only(name).jobs) == list(there.only(str(pid)).jobs) == [name] and not there.only("x").jobs
    assert all(" wait for each other)" in end.out for end in ends), ends


def test_jobs_that_have_ended_are_left_out() -> None:
    closed = Standing("world", "collectives", False, 7, "close()", "x.py:3", 4.0, (), False, False)
    ended = [row(standings=[closed]), row(rank=1, pid=None)]
    lives = [row(standings=[closed]), row(rank=1)]
    shown = top.Jobs({"old": ended, "new": lives}, {"old": [], "new": []}, [5]).only(None)
    assert list(shown.jobs) == ["new"] and "1 job that ended are not shown" not in top.as_text(shown)
    assert "1 job that has ended is not shown (--all)" in top.as_text(shown)


def test_who_waits_for_whom_around() -> None:
    assert circles({0: (1,), 1: (0,), 2: (0,), 3: ()}) == [[0, 1]]
    assert circles({0: (1,), 1: (2,), 2: (0,), 3: (4,), 4: (3,)}) == [[0, 1, 2], [3, 4]] and circles({0: (1,)}) == []
