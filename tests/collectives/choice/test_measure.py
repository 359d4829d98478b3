"""Tuning keeps to its time, says when the machine is busy, and refuses nonsense once."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.measuring import busy, measure


@pytest.mark.parametrize(("nbytes", "most"), [(8, 60), (16 << 20, 4)])
def test_slow_calls_get_no_more_turns_than_there_is_time(
    nbytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is slow whatever one does is made as often as it needs to be seen, not eight times."""
    calls: list[float] = []

    def slow(comm: Communicator, what: Any, given: Any, result: Any) -> Any:
        def call() -> None:
            calls.append(time.monotonic())
            time.sleep(0.01)

        return call

    monkeypatch.setattr(measure, "call_of", slow)
    with hocket.local_world(1) as world:
        found, _ = world.run(lambda comm: measure.times(comm, "allreduce", nbytes, ["ring", "tree"], 0.02))[0]
    assert set(found) == {"ring", "tree"} and all(t >= 0.01 for t in found.values())
    assert len(calls) <= most


@pytest.mark.parametrize("nbytes", [8, 16 << 20])
@pytest.mark.parametrize("seconds", [1e-6, 0.1], ids=["a look", "turns"])
def test_making_a_plan_is_not_timed(nbytes: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan takes longer than hundreds of short calls: its maker would be found hopeless, and be kept as such."""

    def planned(comm: Communicator, what: Any, given: Any, result: Any) -> Any:
        planned_for: list[Any] = [None]

        def call() -> None:
            if planned_for[0] != comm.runner.members.only:
                planned_for[0] = comm.runner.members.only
                time.sleep(0.3)

        return call

    monkeypatch.setattr(measure, "call_of", planned)
    names = ["ring", "tree", "direct"]
    with hocket.local_world(1) as world:
        found, _ = world.run(lambda comm: measure.times(comm, "allreduce", nbytes, names, seconds))[0]
    assert all(t < 0.2 for t in found.values()), found


def test_all_points_are_there_whatever_is_measured_first() -> None:
    with hocket.local_world(2) as world:
        found = world.run(lambda comm: comm.tune(["reduce", "allreduce"], [8, 4096, 65536], seconds=0.05))[0]
    assert [(p.collective, p.nbytes) for p in found.points] == [
        (name, nbytes) for name in ("allreduce", "reduce") for nbytes in (8, 4096, 65536)
    ]


BURN = "import time; end = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


def test_a_busy_machine_is_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    """Another process that computes takes a core; our own computing does not count."""

    def look(comm: Communicator) -> tuple[float, float]:
        before = busy.look()
        time.sleep(0.6)
        return busy.taken(comm, before)

    with subprocess.Popen([sys.executable, "-c", BURN]) as other, hocket.local_world(1) as world:
        others, stolen = world.run(look)[0]
        other.kill()
    assert 0 < others <= 1 and 0 <= stolen <= 1
    quiet = busy.Look(0.0, 10.0, 0.0, 0.0)
    assert busy.look().used > quiet.used > 0
    assert busy.sentence(0.05, 0.0) == "" and "50% of its cores, the hypervisor 3%" in busy.sentence(0.5, 0.03)


def test_our_own_computing_is_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([busy.Look(0.0, 100.0, 5.0, 1.0), busy.Look(10.0, 115.0, 6.0, 11.0)])
    monkeypatch.setattr(busy, "look", lambda: next(looks))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before = busy.look()
    with hocket.local_world(1) as world:
        others, stolen = world.run(lambda comm: busy.taken(comm, before))[0]
    assert others == pytest.approx(0.25) and stolen == pytest.approx(0.05)


def test_tune_says_that_the_machine_was_busy(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(busy, "taken", lambda comm, before: (0.4, 0.0))
    with hocket.local_world(2) as world:
        world.run(lambda comm: comm.tune(["allreduce"], [8], seconds=0.05))
    assert caplog.text.count("other processes take 40% of its cores") == 1, "rank 0 says it"


@pytest.mark.parametrize(
    "words, reason",
    [
        (["--collectives", "foo"], "'foo' is not one of allreduce"),
        (["--sizes", "8Q"], "'8Q' is not a size"),
        (["--seconds", "0"], "must be positive"),
    ],
)
@pytest.mark.parametrize("launch", [[], ["-m", "hocket", "run", "-n", "2", "--no-prefix", "--", sys.executable]])
def test_nonsense_is_refused_once(launch: list[str], words: list[str], reason: str) -> None:
    command = [sys.executable, *launch, "-m", "hocket.tools.tune", *words, *([] if launch else ["-n", "2,3"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("usage:") == 1 and done.stderr.count(reason) == 1, done.stderr
