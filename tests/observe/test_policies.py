"""Replays of another order of gradients: the known iterations of VGG-19, and a run over a slow link."""

from __future__ import annotations

import pathlib
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.errors import ArgumentError
from hocket.lab.overlap.profiles import PROFILES
from hocket.observe.files.reading import read
from hocket.observe.findings import find
from hocket.observe.policies import Event, _events, _rate, replayed
from hocket.observe.replay import what_if
from hocket.observe.timeline import Timeline, Track, slices
from hocket.recording import GradientSpan, written
from hocket.training import Scheduler


def steps(rho: float, barrier: bool, count: int) -> list[Event]:
    """Steps of VGG-19, computation = 1; `barrier`: all are waited for before the forward pass."""
    profile = PROFILES["VGG-19"]
    names = [f"{i:02}" for i in range(len(profile.parameters))]
    events: list[Event] = []
    for step in range(count):
        if step and barrier:
            events += [Event(0.0, name, 0) for name in names]
        owed = 0.0
        for name, share in zip(names, profile.operations, strict=True):
            if step and not barrier:
                events.append(Event(owed, name, 0))
                owed = 0.0
            owed += share / 3
        for name, share, part in reversed(list(zip(names, profile.operations, profile.parameters, strict=True))):
            events.append(Event(owed + share * 2 / 3, name, int(rho * part * 1e9)))
            owed = 0.0
    return events


@pytest.mark.parametrize(("rho", "fifo", "priority"), [(1.0, 1.333, 1.0), (2.0, 2.333, 2.0), (0.5, 1.0, 1.0)])
def test_the_known_iterations(rho: float, fifo: float, priority: float) -> None:
    def iteration(policy: str, barrier: bool) -> float:
        return replayed(steps(rho, barrier, 7), 1e9, policy) - replayed(steps(rho, barrier, 6), 1e9, policy)

    assert iteration("fifo", True) == pytest.approx(fifo, abs=0.003)
    assert iteration("priority", False) == pytest.approx(priority, abs=0.003)


def trained(comm: Communicator, path: str) -> None:
    grads = {name: np.ones(n, np.float32) for name, n in (("first", 400_000), ("last", 4_000_000))}
    s = Scheduler(comm, order="fifo", slice=None, fuse=0)
    for name, grad in grads.items():
        s.declare(name, grad)
    s.seal()
    with comm.trace(path):
        for step in range(3):
            for name in grads:
                if step:
                    s.wait(name)
                time.sleep(0.02)
            for name in reversed(grads):
                time.sleep(0.02)
                s.ready(name, grads[name])
            s.step()
        for name in grads:
            s.wait(name)


@pytest.mark.usefixtures("empty_recorder")
def test_a_run_of_the_scheduler_tells_its_gradients_and_calls(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "run.pftrace")
    with hocket.local_world(2) as world:
        world.run(lambda comm: trained(comm, path))
    found = find(read(path))
    rank, events, own, spent = _events(found)
    step = [("last", 16_000_000), ("first", 1_600_000), ("first", 0), ("last", 0)]
    assert [(event.name, event.nbytes) for event in events] == 3 * step and own == "fifo"
    assert all(event.computed >= 0.02 for event in events[1:2])
    assert spent > 0.175, "nine times it slept after the first"
    assert _rate(found, rank, events) > 1e6


def imagined(order: str) -> Any:
    """100 MB/s; 1 s computed, then 100 MB of the last layer and 50 MB of the first; the last one's pass takes 1 s."""
    rows = [(1.0, 1.0, "last", 10**8), (1.0, 1.0, "first", 5 * 10**7), (1.0, 2.5, "first", 0), (3.5, 3.5, "last", 0)]
    made = slices(len(rows) + 1)
    for i, (begin, end, *_) in enumerate(rows):
        made[i]["begin"], made[i]["end"], made[i]["name"] = begin * 1e9, end * 1e9, i
    made[-1]["begin"], made[-1]["end"], made[-1]["track"] = 1e9, 2.5e9, 1
    tracks = [Track(0, "gradients", group="spans"), Track(0, "calls", group="calls", comm="world.overlap.0.0")]
    told = {f"row {i}": written(GradientSpan(*row[2:], order, "overlap.0.")) for i, row in enumerate(rows)}
    return SimpleNamespace(timeline=Timeline({0: "rank 0"}, tracks, [*told], made, about={"spans": told}))


def test_what_would_help_in_words() -> None:
    said = what_if(imagined("fifo"), "policy priority")
    assert said.startswith("With the policy priority instead of fifo the run would "
                           "take 1.50 s instead of 2.50 s, 40% less")
    assert "off by 0.0%" in said
    with pytest.raises(ArgumentError, match="the replay takes 1.50 s where the run took 2.50 s"):
        what_if(imagined("priority"), "policy fifo")


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the policy must be fifo or priority, not 'tac'"):
        what_if(imagined("fifo"), "policy tac")
    with pytest.raises(ArgumentError, match="in the order 'tac' are not replayed"):
        what_if(imagined("tac"), "policy fifo")
    nothing = SimpleNamespace(timeline=Timeline({0: "rank 0"}, [], [], slices(0)))
    with pytest.raises(ArgumentError, match="has no gradients of a hocket.training.Scheduler"):
        what_if(nothing, "policy priority")
