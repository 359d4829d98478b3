"""Tuning end to end: `hocket tune` keeps a file, later jobs choose by it, and all ranks by the same one."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collectives.choice.tuning import Fabric, Point, Tuning
from hocket.collectives.communicator.communicator import Communicator
from hocket.collectives.measuring import busy, measure
from hocket.errors import ArgumentError
from hocket.tools import tune as command
from support import jobs
from support.faulty import wait_for

FEW = ["--collectives", "allreduce,reduce", "--sizes", "8,64K", "--seconds", "0.1"]
EXPLAIN = """
import hocket
comm = hocket.init()
print(comm.explain("allreduce", 4096))
"""


def tune(place: pathlib.Path, *words: str) -> str:
    env = {**os.environ, "XDG_CACHE_HOME": str(place), "HOCKET_TUNING": "auto"}
    command = [sys.executable, "-m", "hocket", "tune", "--busy", *words]  # who else is on this machine?
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
    assert done.returncode == 0, done
    return done.stdout


def test_what_is_measured_is_kept_and_used_by_later_jobs(tmp_path: pathlib.Path) -> None:
    said = tune(tmp_path, "-n", "2,3", *FEW)
    assert "shm 2: 4 points measured" in said and "shm 3: 4 points measured" in said
    (kept,) = (tmp_path / "hocket").iterdir()
    assert {p.layout.text for p in Tuning.read(kept.read_text()).points} == {"shm 2", "shm 3"}
    for out in jobs.run(2, EXPLAIN, XDG_CACHE_HOME=str(tmp_path), HOCKET_TUNING="auto"):
        assert "the fastest measured" in out and ": measured" in out
    for out in jobs.run(2, EXPLAIN, XDG_CACHE_HOME=str(tmp_path), HOCKET_TUNING="off"):
        assert "the built-in table" in out
    checked = tune(tmp_path, "-n", "2", "--check", *FEW)
    assert "of 4 choices are within 10% of the best" in checked and "| allreduce | 8 B |" in checked


QUIET, BUSY = 0.0, 0.4
ALWAYS = [BUSY] * 9


@pytest.mark.parametrize(
    ("parts", "words", "code", "measured", "said"),
    [
        ([QUIET, QUIET], [], 0, 1, []),
        ([QUIET, BUSY, QUIET], [], 0, 2, ["# the machine is busy: other processes take 40% of its cores: measuring"]),
        (ALWAYS, [], 1, 3, ["cores: nothing is kept; run it when the machine is idle, or with --busy"]),
        (ALWAYS, ["--busy"], 0, 1, ["cores: kept all the same"]),
    ],
    ids=["quiet", "again", "never", "busy"],
)  # fmt: skip
def test_noise_is_measured_again_and_not_kept(
    parts: list[float], words: list[str], code: int, measured: int, said: list[str],
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`parts` of the cores are taken by others: before it measures, and each time that it does."""
    file, turns = tmp_path / "tuning.json", [iter(parts), iter(parts)]
    options = command.parser().parse_args(["--file", str(file), "--seconds", "0.02", *words])
    tries = []

    def rank(comm: Communicator) -> int:
        mine.comm = comm
        return command._join(options, ["allreduce"], [8])

    def counted(comm: Communicator, *args: Any) -> Any:
        tries.append(comm.rank)
        return right(comm, *args)

    mine, right = threading.local(), measure.measured
    monkeypatch.setattr(measure, "measured", counted)
    monkeypatch.setattr(busy, "taken", lambda comm, before: (next(turns[comm.rank]), 0.0))
    monkeypatch.setattr(command, "LOOK", 0.0)
    monkeypatch.setattr(hocket, "init", lambda transport: contextlib.nullcontext(mine.comm))
    file.write_text(only("ring"))
    with hocket.local_world(2) as world:
        assert world.run(rank) == [code, 0]
    out, err = capfd.readouterr()
    kept = {name for p in Tuning.read(file.read_text()).points for name in p.seconds}
    assert tries.count(0) == measured and (len(kept) > 1) == (code == 0)
    for text in said:
        assert text in out + err


def marked(mark: str) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and f"MARK={mark}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def test_ranks_die_with_a_killed_tune(tmp_path: pathlib.Path) -> None:
    mark = f"tune-{os.getpid()}"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path), "MARK": mark}
    command = [sys.executable, "-m", "hocket", "tune", "-n", "2", "--seconds", "60"]
    with subprocess.Popen(command, env=env, cold=True) as process:  # the mark is looked for where the kernel keeps it
        wait_for(lambda: len(marked(mark)) == 4)  # itself, the launcher, two ranks
        process.kill()
    wait_for(lambda: not marked(mark))


def only(name: str) -> str:
    """A tuning that makes 2 ranks take that algorithm for every allreduce."""
    point = Point("allreduce", Fabric((2,), "shm", "", 65536), 8, {name: 1e-6})
    return Tuning([point]).text()


def test_rank_0_has_the_say(tmp_path: pathlib.Path) -> None:
    """Ranks on other hosts may have other files, or none."""
    source = """
    import os
    os.environ["HOCKET_TUNING"] = os.path.join(os.environ["PLACE"], os.environ["HOCKET_RANK"])
    import hocket, numpy as np
    comm = hocket.init()
    print(comm.explain("allreduce", 1 << 20), comm.allreduce(np.ones(1 << 18, np.float32))[0])
    """
    (tmp_path / "0").write_text(only("ring"))
    (tmp_path / "1").write_text(only("tree"))
    for out in jobs.run(2, source, PLACE=str(tmp_path)):
        assert "1 MiB: ring, the fastest measured" in out and out.strip().endswith(" 2.0")


def test_a_spoilt_file_in_the_usual_place_is_told_of_and_left(tmp_path: pathlib.Path) -> None:
    tune(tmp_path, "-n", "2", *FEW)
    (kept,) = (tmp_path / "hocket").iterdir()
    for text in ("", "{}", json.dumps({"format": 99})):
        kept.write_text(text)
        with jobs.Job(2, EXPLAIN, env={"XDG_CACHE_HOME": str(tmp_path), "HOCKET_TUNING": "auto"}) as job:
            first, other = job.wait()
        assert "the built-in table" in first.out and f"{kept} is not used: this is not a file of" in first.err, text
        assert "the built-in table" in other.out, text
        assert kept.read_text() == text
    tune(tmp_path, "-n", "2", *FEW)
    assert len(Tuning.read(kept.read_text()).points) == 4, "measuring again replaces it"


def test_a_named_file_must_be_good(tmp_path: pathlib.Path) -> None:
    with jobs.Job(2, EXPLAIN, env={"HOCKET_TUNING": f"{tmp_path}/none.json"}) as job:
        first, _ = job.wait()
    assert first.code != 0 and f"HOCKET_TUNING={tmp_path}/none.json: [Errno 2]" in first.err


def test_a_short_measurement_at_the_start() -> None:
    """The caller may be in a group, where nothing else can be measured."""
    source = EXPLAIN.replace("comm = hocket.init()", "with hocket.group(): comm = hocket.init()")
    assert source != EXPLAIN
    for out in jobs.run(2, source, HOCKET_TUNING="measure"):
        assert "the fastest measured" in out


def changes_its_choice(comm: Communicator) -> None:
    x = np.ones(1000)
    before = comm.tuning
    comm.allreduce(x)
    tuned = comm.tune(["allreduce"], [8, 8000], seconds=0.05)
    assert {p.nbytes for p in tuned.points} == {8, 8000}
    texts = comm.share(tuned.text(), "this test")
    assert texts == [texts[0]] * comm.size, "every rank must hold the same numbers"
    slow = Tuning([Point("allreduce", p.layout, p.nbytes, {"ring": 1e-6, "direct": 2e-6}) for p in tuned.points])
    comm.retune(slow)
    for _ in range(3):  # the general way, then the remembered one
        assert comm.allreduce(np.ones(1000))[0] == comm.size
        assert comm.membership.main.engine.plan.algorithm == "ring"
    half = comm.split(comm.rank % 2)
    assert half is not None and half.tuning is slow
    comm.retune(before)
    comm.allreduce(np.ones(1000))
    assert comm.membership.main.engine.plan.algorithm != "ring"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_communicator_chooses_by_what_it_measured(size: int) -> None:
    with hocket.local_world(size) as world:
        world.run(changes_its_choice)


@pytest.mark.parametrize(
    ("words", "why"),
    [({"collectives": ["allsum"]}, "'allsum' is not one of allreduce, "), ({"sizes": [0]}, "must be positive"),
     ({"seconds": -1.0}, "above 0"), ({"collectives": ["barrier"]}, "'barrier' is not one of")],
)  # fmt: skip
def test_wrong_arguments(words: dict[str, object], why: str) -> None:
    with hocket.local_world(1) as world, pytest.raises(ArgumentError, match=why):
        world.run(lambda comm: comm.tune(**words))


def test_a_named_algorithm_is_not_measured_against_others() -> None:
    with jobs.Job(2, "import hocket; hocket.init().tune()", env={"HOCKET_ALGORITHM": "ring"}) as job:
        for ended in job.wait():
            assert ended.code != 0 and "HOCKET_ALGORITHM names the algorithms to use; unset it" in ended.err
