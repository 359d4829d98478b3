"""The algorithm of docs/tuning.md, as a package of its own: found by the commands and by a job, and proven there."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from support import jobs

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture
def line(tmp_path: pathlib.Path) -> dict[str, str]:
    """The environment of one who has installed it."""
    page = (ROOT / "docs" / "tuning.md").read_text()
    (source,) = re.findall(r"```python\n(# line\.py\n.*?)```", page, re.S)
    (entry,) = re.findall(r"```toml\n\[project\.entry-points\.\"(.*?)\"\]\n(.*?)\n```", page)
    (tmp_path / "line.py").write_text(source)
    about = tmp_path / "line-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: line\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[{}]\n{}\n".format(entry[0], entry[1].replace('"', "")))
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}


def hocket(env: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "hocket", *words]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_know_it(line: dict[str, str]) -> None:
    assert "allreduce line: 3 ranks, 1 chunk, 4 steps" in hocket(line, "show", "line", "-n", "3")
    topology = "hosts:2x4,inside=0.3us/10GB,link=20us/10Gbit"
    words = ("--algorithm", "line,ring", "--size", "8", "--bytes", "1M", "--topology", topology)
    assert re.search(r"^ +line +8 ", hocket(line, "simulate", "allreduce", *words), re.M)
    bench = ("-n", "2", "--algorithm", "line", "-b", "8", "-e", "8", "--time", "0.05", "--check")
    assert "line" in hocket(line, "bench", "allreduce", *bench)


def test_a_command_takes_a_file(line: dict[str, str], tmp_path: pathlib.Path) -> None:
    file = tmp_path / "line.py"
    (tmp_path / "line-1.dist-info" / "entry_points.txt").unlink()
    assert "allreduce line: 3 ranks" in hocket(line, "show", "--from", str(file), "line", "-n", "3")
    file.write_text("1 / 0")
    done = subprocess.run([sys.executable, "-m", "hocket", "show", "--from", str(file)], capture_output=True, text=True)
    assert done.returncode == 2 and f"{file} cannot be taken: ZeroDivisionError" in done.stderr


def test_a_job_uses_it(line: dict[str, str]) -> None:
    source = """
        import hocket, numpy as np
        with hocket.init() as comm:
            x = comm.allreduce(np.full(30001, comm.rank + 1.0), algorithm="line")
            tuned = comm.tune(["allreduce"], [8], seconds=0.2)
            print((x == 6).all(), "line" in str(tuned.points))
    """
    assert jobs.run(3, source, stay=False, **line) == ["True True\n"] * 3


def test_a_package_that_fails_is_told_of(line: dict[str, str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "line.py").write_text("raise RuntimeError('half written')")
    source = "import hocket\nwith hocket.init() as comm:\n    print(comm.allreduce(1))"
    with jobs.Job(2, source, env=line) as job:
        for end in job.wait():
            assert end.code == 0 and end.out == "2\n", end
            assert "the algorithms of line (entry point 'line') cannot be loaded: half written" in end.err
