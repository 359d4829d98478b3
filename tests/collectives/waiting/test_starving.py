"""A warning, once, where a host's ranks wait for cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hocket.collectives.waiting import starving
from hocket.system.run_delay import RunDelay
from support import jobs

PROGRAM = """
import os, time, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from hocket.collectives.waiting import starving
starving.EVERY = 0.3
import hocket
comm = hocket.init()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    sum(range(1000))
comm.barrier()
"""


@pytest.mark.parametrize("ranks", [4])
def test_the_first_rank_of_a_host_says_it_once(ranks: int) -> None:
    """Four ranks compute on one core: each is ready for all of the time, and runs in a quarter of it."""
    with jobs.Job(ranks, PROGRAM) as job:
        ends = job.wait(60)
    assert [end.code for end in ends] == [0] * ranks, ends
    assert [end.err.count("and had no core: 4 ranks on 1 core. ") for end in ends] == [1, 0, 0, 0], ends


def test_a_rank_that_has_its_core_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks go on, every 30 s; of several threads the one that waits longest counts, and new ones from their begin."""
    clock = iter([100.0, 130.0, 160.0])
    monkeypatch.setattr("hocket.system.run_delay.time.monotonic", lambda: next(clock))
    waits = {"7": 5, "8": 0}

    def write() -> None:
        for thread, seconds in waits.items():
            (tmp_path / thread).mkdir(exist_ok=True)
            (tmp_path / thread / "schedstat").write_text(f"1 {int(seconds * 1e9)} 3")

    write()
    delay = RunDelay(str(tmp_path))
    waits.update({"7": 11, "8": 15, "9": 1000})
    write()
    assert delay.share() == 0.5
    assert delay.share() == 0.0
    asked: list[float] = []
    monkeypatch.setattr(starving, "RunDelay", lambda: type("Idle", (), {"share": lambda self: 0.4})())
    starving.watch(lambda seconds, call: asked.append(seconds) or (len(asked) < 3 and call()), 0, 2)
    assert asked == [30.0] * 3


def test_the_remedy_fits_the_cause() -> None:
    cores = len(os.sched_getaffinity(0))
    assert "beside other programs" in starving.words(0, cores, 0.6, cores)
    assert "ready to run for 18 of the last 30 s" in starving.words(0, cores, 0.6, cores)
    assert "beside" not in starving.words(0, cores + 1, 0.6, cores)


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    assert RunDelay(str(tmp_path / "none")).share() == 0.0
