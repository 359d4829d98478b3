"""Optimizers in shards among ranks that die and come: nothing is lost that a step has made, and no rank has all."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.training import Adam, CrewShards, Sharded
from hocket.training.large.sharding.crewed import _newest
from support.elastic_ranks import wait_for
from support.jobs import Job
from support.quadratic import gradient, start
from support.worlds import PATH

SECRET = "a secret of the tests of crews in shards, 12345"
STEPS = 9
PROGRAM = """
import json, os, signal, sys, time
import numpy as np
import hocket
from hocket.training import Adam, Again, Crew, CrewShards, Sharded
from support.quadratic import gradient, start
directory, stage = {directory}, {stage}
theta = {{name: np.array({begin} * x) for name, x in start().items()}}
made = []
def make(comm, states):
    made.append([comm.size, None if states is None else len(states)])
    return Sharded(Adam(lr=0.1), comm, theta, stage=stage, states=states)
state, lost = CrewShards(make), 0
def parameters(sharded):
    if stage < 3:
        return theta
    with sharded.gathered(*theta) as arrays:
        return {{name: np.array(x) for name, x in arrays.items()}}
def train(crew, each=lambda sharded: None):
    global lost
    while state.steps < {steps}:
        change = crew.boundary(state)
        if change and change.joined:
            crew.boundary(state)    # waits for who has come in
        try:
            with crew.attempt(state):
                sharded = state.on(crew)
                grads = gradient(0, state.steps + 1, parameters(sharded))    # alike on all
                each(sharded)
                if stage == 1:
                    sharded.step(grads)
                else:
                    for name, g in grads.items():
                        sharded.add(name, g)
                    sharded.step()
                state.keep()
        except Again:
            lost += 1
    crew.boundary(state)
    w = parameters(state.sharded)
    print(json.dumps(dict(size=crew.comm.size, steps=state.steps, lost=lost, made=made,
                          w={{name: x.ravel().tolist() for name, x in w.items()}})), flush=True)
    crew.comm.close()
"""
MEMBER = """
comm = hocket.init(elastic=True)
me = comm.rank
def each(sharded):
    if me == 1 and state.steps == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if state.steps == 6:
        if me == 0:
            with open(os.path.join(directory, "door~"), "w") as file:
                file.write(sharded.comm.door)
            os.rename(file.name, file.name[:-1])
        while not sharded.comm.waiting:
            time.sleep(0.005)
train(Crew(comm, grace=60), each)
"""
NEWCOMER = """
train(Crew(hocket.init(join=open(os.path.join(directory, "door")).read(), timeout=60), grace=60))
"""


def wanted(steps: int = STEPS) -> dict[str, Any]:
    """The parameters after all steps, as one rank has them."""
    theta = start()

    def program(comm: hocket.Communicator) -> None:
        sharded = Sharded(Adam(lr=0.1), comm, theta)
        for step in range(1, steps + 1):
            sharded.step(gradient(0, step, theta))

    hocket.local_world(1).run(program)
    return theta


@pytest.mark.parametrize("stage", [1, pytest.param(3, marks=pytest.mark.more)])
def test_one_dies_in_a_step_and_another_comes(stage: int) -> None:
    """Its shards are with the next rank; a newcomer, whose parameters are zeros, gets its part of all."""
    what = {"stage": stage, "steps": STEPS}
    source = PROGRAM.format(directory="os.path.dirname(__file__)", begin=1, **what) + MEMBER
    path = os.pathsep.join([PATH, os.environ.get("PYTHONPATH", "")])
    with Job(3, source, env={"HOCKET_SECRET": SECRET, "PYTHONPATH": path}) as job:
        wait_for(job, "door")
        new = PROGRAM.format(directory=repr(job.directory), begin=0, **what) + NEWCOMER
        env = {**os.environ, "PYTHONPATH": path, "HOCKET_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
        made = subprocess.run([sys.executable, "-c", new], env=env, capture_output=True, text=True, timeout=90)
        assert made.returncode == 0, made.stderr
        ends = job.wait(90)
    assert ends[0].code == ends[2].code == 0, (ends[0].err, ends[2].err)
    rows = [json.loads(text.splitlines()[-1]) for text in (made.stdout, ends[0].out, ends[2].out)]
    for row in rows:
        assert (row["size"], row["steps"]) == (3, STEPS)
        for name, x in wanted().items():
            np.testing.assert_allclose(row["w"][name], x.ravel(), atol=2e-6)
    assert [size for size, _ in rows[1]["made"]] == [3, 2, 3] and rows[0]["made"] == [[3, 0]]
    assert rows[1]["lost"] == 1


MORTAL = """
comm = hocket.init(elastic=True)
def each(sharded):
    for steps in (2, 20):
        if state.steps == steps:
            open(os.path.join(directory, f"at {steps}"), "w").close()
    time.sleep(0.002)
train(Crew(comm, grace=60), each)
"""


@pytest.mark.more
def test_kills_at_random_moments() -> None:
    """Two of five ranks, one after the other, anywhere in a step, in a `keep`, while shards move."""
    steps = 40
    source = PROGRAM.format(directory="os.path.dirname(__file__)", begin=1, stage=1, steps=steps) + MORTAL
    path = os.pathsep.join([PATH, os.environ.get("PYTHONPATH", "")])
    for seed in range(10):
        dice = random.Random(seed)
        victims = dice.sample(range(5), 2)
        with Job(5, source, env={"HOCKET_SECRET": SECRET, "PYTHONPATH": path}) as job:
            for victim, sign in zip(victims, ("at 2", "at 20"), strict=True):
                wait_for(job, sign)
                time.sleep(dice.random() * 0.05)
                job.signal(victim, signal.SIGKILL)
            ends = job.wait(60)
        for rank in {*range(5)} - {*victims}:
            assert ends[rank].code == 0, (seed, rank, ends[rank].err)
            row = json.loads(ends[rank].out.splitlines()[-1])
            assert (row["size"], row["steps"]) == (3, steps), (seed, row["size"], row["steps"])
            for name, x in wanted(steps).items():
                np.testing.assert_allclose(row["w"][name], x.ravel(), atol=1e-4)


def test_which_step_is_whole() -> None:
    """Rank 1's shards of step 5 are lost with ranks 1 and 2; those of step 4 are all there."""

    def told(*kept: tuple[str, int, int, list[int]]) -> list[Any]:
        return ["", [list(each) for each in kept]]

    four, five = ("a", 4, 4), ("a", 5, 4)
    rows = [told((*four, [0, 3]), (*five, [0, 3])), told((*four, [2, 1])), told()]
    assert _newest(rows) == (("a", 4), [])
    assert _newest([told(), told()]) == (None, [])
    assert _newest([told((*five, [0, 3])), told((*five, [3, 2]))]) == (None, [1])
    late = told(("a", 9, 4, [1, 0]))
    assert _newest([told(("b", 6, 2, [0, 1])), told(("b", 6, 2, [1, 0])), late]) == (("b", 6), [])


def test_no_rank_sends_or_holds_all() -> None:
    """Four ranks become three, and then five: what moves is what each lacks, and memory is a part of the whole."""
    theta = {"w": np.random.default_rng(1).random((600, 100), np.float32)}
    sizes: list[int] = []

    def first(comm: hocket.Communicator) -> Any:
        mine = {"w": theta["w"].copy()}
        sharded = Sharded(Adam(lr=0.1), comm, mine)
        sharded.step({"w": mine["w"]})
        sizes.append(max(x.nbytes for x in sharded.state_dict()["arrays"].values()))
        return sharded.state_dict(), mine["w"].copy()

    with hocket.local_world(4) as world:
        made = world.run(first)
    assert max(sizes) == theta["w"].nbytes // 4
    given = [state for state, _ in made]
    with hocket.local_world(5) as world:

        def again(comm: hocket.Communicator) -> None:
            mine, have = {"w": np.zeros_like(theta["w"])}, given[comm.rank : comm.rank + 1]
            sharded = Sharded(Adam(lr=0.1), comm, mine, states=have)
            assert sharded.steps == 1 and np.array_equal(mine["w"], made[0][1])
            flat = np.concatenate([state["arrays"]["m/w"] for state in given])
            begin = comm.rank * flat.size // 5
            assert np.array_equal(sharded.slots["m"], flat[begin : begin + sharded.size])
            with pytest.raises(hocket.ArgumentError, match="give the states of all ranks"):
                sharded.load_state_dict([] if comm.rank == 1 else have)
            with pytest.raises(hocket.ArgumentError, match="no rank has given a state"):
                sharded.load_state_dict([])

        world.run(again)


def test_copies_are_on_another_host_where_there_is_one() -> None:
    """Two of four ranks are left; on one host rank 1 is lost with its keeper, rank 2."""

    def program(comm: hocket.Communicator, hosts: list[list[int]], left: list[int], lost: str) -> None:
        comm.world.hosts = hosts
        theta = start()
        state = CrewShards(lambda comm, states: Sharded(Adam(), comm, theta, states=states))
        state.on(comm).step(gradient(0, 1, theta))
        state.keep()
        if comm.rank in left:
            half = comm.create_group(left, "those left")
            if lost:
                with pytest.raises(hocket.Error, match=rf"ranks \[{lost}\] are lost, and those who kept their shards"):
                    state._move(half)
            else:
                state._move(half)
                assert (state.steps, state.sharded.comm.size) == (1, 2)

    with hocket.local_world(4) as world:
        world.run(lambda comm: program(comm, [[0, 1, 2, 3]], [0, 3], "1"))
        for left in ([0, 1], [2, 3], [0, 3]):
            world.run(lambda comm, left=left: program(comm, [[0, 1], [2, 3]], left, ""))
