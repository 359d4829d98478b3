"""A crew of real processes: killed, stopped and joined; who goes on holds one state, and each part counts once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

import hocket
from hocket.training.crew.machine import Attendance, at_moment
from hocket.training.crew.quorum import FIRST, LEAST, Grace
from support.cases import more
from support.elastic_ranks import mark, wait_for
from support.jobs import Job
from support.worlds import PATH

SECRET = "a secret of the tests of crews, 12345"
CREW = """
import json, os, signal, sys, time, zlib
import numpy as np
import hocket
from hocket.training import Again, Crew
directory = {directory}
class State:
    def __init__(self):
        self.position, self.x = 0, np.zeros(1000)
    def arrays(self):
        return {{"x": self.x}}
    def numbers(self):
        return {{"position": self.position}}
    def load(self, numbers):
        self.position = numbers["position"]
def note(name):
    open(os.path.join(directory, name), "w").close()
def there(name):
    return os.path.exists(os.path.join(directory, name))
state, changes, lost, late = State(), [], 0, set()
def train(crew, until, each=lambda crew, state: None):
    global lost
    while state.position < until:
        change = crew.boundary(state)
        if change:
            changes.append([change.size, list(change.lost), change.joined, change.healed])
        try:
            with crew.attempt(state):
                each(crew, state)
                here = crew.present()
                late.update(crew.left_out)
                state.x += here.allreduce(np.full(1000, 1.0 + state.position))
                state.position += 1
        except Again:
            lost += 1
    here = crew.boundary(state)
def told(crew):
    print(json.dumps(dict(rank=crew.comm.rank, size=crew.comm.size, generation=crew.generation, x=state.x[0],
                          late=sorted(late), whole=bool((state.x == state.x[0]).all()), changes=changes, lost=lost,
                          position=state.position)), flush=True)
"""
BEGIN = CREW.format(directory="os.path.dirname(__file__)") + "comm = hocket.init(elastic=True)\nme = comm.rank\n"


def said(ends: list[Any], *ranks: int) -> list[dict[str, Any]]:
    for rank in ranks:
        assert ends[rank].code == 0, f"rank {rank}: {ends[rank].err}"
    return [json.loads(ends[rank].out.splitlines()[-1]) for rank in ranks]


@pytest.mark.parametrize("victim", [0, *more(2)])
def test_who_dies_in_a_round_is_left_behind_and_the_round_is_begun_again(victim: int) -> None:
    source = BEGIN + f"""
def each(crew, state):
    if me == {victim} and state.position == 3:
        os.kill(os.getpid(), signal.SIGKILL)
crew = Crew(comm, grace=60)
train(crew, 6, each)
told(crew)
crew.comm.close()
"""
    with Job(3, source, env={"HOCKET_SECRET": SECRET}) as job:
        ends = job.wait(90)
    rows = said(ends, *(rank for rank in range(3) if rank != victim))
    for row in rows:
        assert (row["size"], row["position"], row["whole"]) == (2, 6, True)
        assert row["x"] == 3 * (1 + 2 + 3) + 2 * (4 + 5 + 6)
        assert row["changes"] == [[2, [victim], 0, False]] and row["lost"] == 1


@pytest.mark.parametrize("stopped", [0, *more(2)])
def test_who_is_late_does_not_block_the_others_and_comes_back(stopped: int) -> None:
    """It is stopped in a round; the others do many rounds; then it takes their state, and is in the sums again."""
    source = BEGIN + f"""
def each(crew, state):
    if me == {stopped} and state.position == 2 and not there("stopped"):
        note("ready")
    if state.position == 2:
        while not there("stopped"):
            time.sleep(0.005)
    if state.position == 12 and me != {stopped}:
        note("going on")
    if me == {stopped} and changes and changes[-1][3]:
        note("back")
    if state.position >= 12:
        time.sleep(0.02 if there("back") else 0.3)
crew = Crew(comm, grace=3)
train(crew, 40, each)
told(crew)
crew.comm.close()
"""
    with Job(3, source, env={"HOCKET_SECRET": SECRET}) as job:
        wait_for(job, "ready")
        job.signal(stopped, signal.SIGSTOP)
        mark(job, "stopped")
        wait_for(job, "going on")
        job.signal(stopped, signal.SIGCONT)
        ends = job.wait(60)
    rows = said(ends, 0, 1, 2)
    assert len({row["x"] for row in rows}) == 1 and all(row["whole"] and row["position"] == 40 for row in rows)
    for rank, row in enumerate(rows):
        assert (row["size"], row["generation"]) == (3, 0)
        assert row["late"] == ([] if rank == stopped else [stopped]) or rank == stopped, row
    every = 3 * sum(range(1, 41))
    without = sum(range(3, 13))  # of the stopped rank's parts at least these are missing
    assert every - sum(range(1, 41)) <= rows[0]["x"] <= every - without
    assert any(change[3] for change in rows[stopped]["changes"]), "it got the others' state"


def test_a_newcomer_takes_the_state_and_takes_part() -> None:
    source = BEGIN + """
crew = Crew(comm, grace=60)
train(crew, 5)
if me == 0:
    with open(os.path.join(directory, "door~"), "w") as file:
        file.write(comm.door)
    os.rename(file.name, file.name[:-1])
while crew.comm.size == 2:
    crew.boundary(state)
    time.sleep(0.01)
train(crew, 8)
told(crew)
crew.comm.close()
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        wait_for(job, "door")
        new = CREW.format(directory=repr(job.directory)) + """
comm = hocket.init(join=open(os.path.join(directory, "door")).read(), timeout=60)
crew = Crew(comm, grace=60)
change = crew.boundary(state)
begun = state.position
train(crew, 8)
changes.append([change.healed, begun])
told(crew)
crew.comm.close()
"""
        env = {**os.environ, "PYTHONPATH": PATH, "HOCKET_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
        made = subprocess.run([sys.executable, "-c", new], env=env, capture_output=True, text=True, timeout=90)
        assert made.returncode == 0, made.stderr
        row = json.loads(made.stdout.splitlines()[-1])
        rows = said(job.wait(90), 0, 1)
    assert row["changes"] == [[True, 5]] and (row["rank"], row["size"]) == (2, 3)
    assert {each["x"] for each in (row, *rows)} == {2 * (1 + 2 + 3 + 4 + 5) + 3 * (6 + 7 + 8)}


def test_a_newcomer_that_has_loaded_takes_what_has_changed() -> None:
    """It takes the state before it comes; then one block is moved of eight, and all hold the same bits."""
    source = BEGIN + """
state.x = np.arange(1 << 20, dtype=float)
crew = Crew(comm, grace=60, serve=state if me == 0 else None)
if me == 0:
    with open(os.path.join(directory, "door~"), "w") as file:
        file.write(comm.door)
    os.rename(file.name, file.name[:-1])
while not comm.waiting:
    time.sleep(0.005)
state.x[5] = -1.0
state.position = 1
moved = []
broadcast = hocket.Communicator.broadcast
def counted(self, x, *args, **kwargs):
    moved.append(x.nbytes)
    return broadcast(self, x, *args, **kwargs)
hocket.Communicator.broadcast = counted
crew.boundary(state)
print(json.dumps([crew.comm.size, zlib.crc32(state.x.data), moved]))
crew.close()
"""
    new = """
state.x = np.zeros(1 << 20)
crew = Crew.join(open(os.path.join(directory, "door")).read(), state, timeout=60)
assert state.x[7] == 7.0, "it has loaded"
crew.boundary(state)
print(json.dumps([crew.comm.size, zlib.crc32(state.x.data), state.position]))
crew.close()
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        wait_for(job, "door")
        text = CREW.format(directory=repr(job.directory)) + new
        env = {**os.environ, "PYTHONPATH": PATH, "HOCKET_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
        made = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=90)
        assert made.returncode == 0, made.stderr
        ends = job.wait(90)
    assert all(end.code == 0 for end in ends), ends
    size, digest, position = json.loads(made.stdout.splitlines()[-1])
    found = [json.loads(end.out.splitlines()[-1]) for end in ends]
    assert (size, position) == (3, 1) and {each[1] for each in found} == {digest}
    assert found[0][2] == [1 << 20] and found[1][2] == []


def test_two_states_of_one_position_are_an_error() -> None:
    source = BEGIN + """
state.x += me
try:
    Crew(comm).boundary(state)
except hocket.MismatchError as error:
    print("position 0 differ" in str(error))
Crew(comm, replicated=False).boundary(state)
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        assert [end.out.strip() for end in job.wait(90)] == ["True"] * 2


def test_states_are_compared_at_each_second_position() -> None:
    """Rank 1's memory changes in round 3: nobody notices at its end, and all do at the end of round 4."""
    source = BEGIN + """
crew = Crew(comm, verify_every=2)
try:
    for state.position in range(1, 5):
        if state.position == 3 and me == 1:
            state.x[1] += 1
        crew.boundary(state)
except hocket.MismatchError as error:
    print(state.position, "position 4 differ" in str(error), "on ranks [(0,), (1,)]" in str(error), error)
"""
    with Job(2, source, env={"HOCKET_SECRET": SECRET}) as job:
        for end in job.wait(90):
            assert end.out.startswith("4 True True") and "x[" in end.out, end


def test_the_latest_moment_counts() -> None:
    """And no part that is not more than half of the members goes on."""
    boundary, present = Attendance(0, 4), Attendance(1, 4)
    assert at_moment({0: boundary, 1: Attendance(0, 3), 2: Attendance(0, -1)}, 3) == (0, 1, 2)
    assert at_moment({0: boundary, 1: present, 2: present}, 3) == (1, 2)
    assert at_moment({0: present, 1: Attendance(0, 5), 2: Attendance(0, 2)}, 3) == (1, 2)
    assert at_moment({0: boundary, 1: boundary, 2: present}, 3) == (0, 1)
    assert at_moment({1: present, 2: present}, 4) == at_moment({0: boundary, 1: present}, 2) == ()


def test_the_grace_follows_what_is_usual() -> None:
    grace = Grace("adaptive")
    assert grace.seconds == FIRST and Grace(2.5).seconds == 2.5
    for wait in (1.0, 1.1, 0.9, 1.0, 1.2, 9.0):
        grace.note(wait)
    assert grace.seconds == pytest.approx(1.05 + 4 * 0.1)
    for _ in range(40):
        grace.note(0.0)
    assert grace.seconds == LEAST
    with pytest.raises(hocket.ArgumentError, match="adaptive"):
        from hocket.training import Crew

        Crew(None, grace="soon")  # type: ignore[arg-type]


OTHERS = """
import threading
from hocket.training import LocalSGD
def loop(crew, every=2):
    w = {{"w": np.zeros(3, np.float32)}}
    return w, LocalSGD(crew, w, every=every)
"""


@pytest.mark.parametrize("how", ["every=3", *more("names"), "never comes"])
def test_a_newcomer_that_does_not_fit_or_does_not_come_ends_nobody_else(how: str) -> None:
    source = BEGIN + OTHERS.format() + """
crew = Crew(comm, grace=0.5, timeout=60)
if me == 0:
    with open(os.path.join(directory, "door~"), "w") as file:
        file.write(comm.door)
    os.rename(file.name, file.name[:-1])
w, outer = loop(crew)
slowest, rounds_then, alone = 0.0, 0, set()
while not there("over") or outer.rounds < rounds_then + 5:
    began = time.monotonic()
    w["w"] += 1
    time.sleep(0.02)
    outer.step()
    slowest = max(slowest, time.monotonic() - began)
    if crew.generation and slowest:
        alone.add(outer.rounds)
    if len(alone) == 6:
        note(f"{me} has gone on")
    rounds_then = rounds_then or outer.rounds * there("over")
    if there("over") and me and outer.rounds >= rounds_then + 5:
        break
print(json.dumps([crew.generation, outer.rounds - rounds_then, slowest]), flush=True)
os._exit(0)
"""
    new = CREW.format(directory="DIRECTORY") + OTHERS.format() + """
comm = hocket.init(join=open(os.path.join(directory, "door")).read(), timeout=60)
try:
    if HOW == "never comes":
        while not all(there(f"{rank} has gone on") for rank in range(3)):
            time.sleep(0.01)
        os._exit(0)
    if HOW == "names":
        LocalSGD(Crew(comm), {"v": np.zeros(3, np.float32)}, every=2)
    loop(Crew(comm), every=3)
except hocket.MismatchError as error:
    print(error)
os._exit(0)
"""
    with Job(3, source, env={"HOCKET_SECRET": SECRET, "HOCKET_TIMEOUT": "60"}) as job:
        wait_for(job, "door")
        env = {**os.environ, "PYTHONPATH": PATH, "HOCKET_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
        text = new.replace("DIRECTORY", repr(job.directory)).replace("HOW", repr(how))
        made = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=90)
        mark(job, "over")
        ends = job.wait(90)
    wanted = {"every=3": "every is 3, the members' is 2", "names": "parameter 'v'", "never comes": ""}[how]
    assert made.returncode == 0 and wanted in made.stdout, (made.stdout, made.stderr)
    for end in ends:
        generation, after, slowest = json.loads(end.out.splitlines()[-1])
        assert generation >= 1 and after >= 5 and slowest < 30, (generation, after, slowest)


def test_a_member_that_is_stopped_in_the_sum_is_left_out_and_hears_it() -> None:
    """Its calls may have all they need when it goes on: then it hears it at the next moment."""
    source = BEGIN + """
def each(crew, state):
    if me == 2 and state.position == 2:
        crew.present()
        note("in the sum")
        os.kill(os.getpid(), signal.SIGSTOP)
    elif state.position == 2:
        crew.present()
        crew.comm.allreduce(np.ones(3))
crew = Crew(comm, grace=3, timeout=3)
try:
    train(crew, 6, each)
    note(f"{me} goes on")
    told(crew)
except hocket.PeerLostError as error:
    print(error)
os._exit(0)
"""
    with Job(3, source, env={"HOCKET_SECRET": SECRET, "HOCKET_TIMEOUT": "3"}) as job:
        wait_for(job, "in the sum")
        wait_for(job, "0 goes on")
        wait_for(job, "1 goes on")
        job.signal(2, signal.SIGCONT)
        ends = job.wait(90)
    for row in said(ends, 0, 1):
        assert (row["size"], row["position"], row["whole"]) == (2, 6, True) and row["x"] == 3 * 3 + 2 * (3 + 4 + 5 + 6)
    assert "the others have gone on without this rank" in ends[2].out, ends[2]


@pytest.mark.parametrize("victim", [0, *more(2)])
def test_a_member_is_cut_at_each_of_its_messages(victim: int) -> None:
    """The donor of a state, or who takes it, is killed before or after its nth instruction, each n in a job of its own:
    the others go on, and hold the same bits."""
    source = BEGIN + """
from hocket.training.crew import crew as shell
number, (victim, cut, after) = 0, map(int, os.environ["CUT"].split())
def counted(carry):
    def carried(crew, instruction):
        global number
        number += 1
        fatal = me == victim and number == cut
        made = carry(crew, instruction) if after or not fatal else None
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return made
    return carried
for name, carry in shell.CARRY.items():
    shell.CARRY[name] = counted(carry)
state.position -= me == 2
crew = Crew(comm, grace=60, timeout=60)
train(crew, 2)
told(crew)
os._exit(0)
"""
    with contextlib.ExitStack() as stack:
        cuts = [f"{victim} {cut} {(cut + victim // 2) % 2}" for cut in range(1, 8)]
        jobs = [stack.enter_context(Job(3, source, env={"HOCKET_SECRET": SECRET, "CUT": cut})) for cut in cuts]
        for cut, job in zip(cuts, jobs, strict=True):
            ends = job.wait(60)
            rows = said(ends, *(rank for rank in range(3) if rank != victim))
            assert ends[victim].code, f"{cut}: it was not cut"
            assert len({row["x"] for row in rows}) == 1, cut
            assert all(row["whole"] and row["position"] == 2 for row in rows), cut


def test_a_newcomer_loads_beside_one_that_has_stopped_or_does_without() -> None:
    """One has asked for the state and takes it not; another member answers nobody."""
    source = BEGIN + """
import socket
from hocket import hosting
from hocket.training.crew.loading import Donor, load
state.x = np.arange(4e6)
server, mine = Donor(comm, state), State()
mine.x = np.zeros(4_000_000)
stopped = hocket.connect(hosting.notice(comm.door)["state"], timeout=60)
assert load(comm.door, mine, 60) and (mine.x == state.x).all()
deaf = socket.create_server(("127.0.0.1", 0))
comm.set_notice({"state": f"tcp:127.0.0.1:{deaf.getsockname()[1]}"})
began = time.monotonic()
assert not load(comm.door, mine, 1) and time.monotonic() - began < 30
os._exit(0)
"""
    with Job(1, source, env={"HOCKET_SECRET": SECRET}) as job:
        ends = job.wait(90)
    assert ends[0].code == 0, ends[0]


def test_a_member_that_runs_another_program_is_as_one_that_is_late() -> None:
    """It says what no crew does, and the others go on."""
    source = BEGIN + """
if me == 2:
    for info in ("x", [0], {"a": 1}, [0, "x", None, False, None], [7, 0, None, False, None], [0, 0, [], 0, None]):
        try:
            comm.come(info, grace=0.2, timeout=2)
        except hocket.Error:
            break
    time.sleep(100)
crew = Crew(comm, grace=3)
train(crew, 5)
told(crew)
note(f"done {me}")  # who leaves sooner leaves the other one alone with one that is silent
while not (there("done 0") and there("done 1")):
    time.sleep(0.005)
os._exit(0)
"""
    with Job(3, source, env={"HOCKET_SECRET": SECRET}) as job:
        for process in job.processes[:2]:
            process.wait(90)
        job.processes[2].kill()
        rows = said(job.wait(30), 0, 1)
    assert [(row["position"], row["x"], row["size"]) for row in rows] == [(5, 30.0, 3)] * 2
