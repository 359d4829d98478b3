"""`hocket doctor --job` on real ranks of this machine, under each launcher."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

import hocket
from support.cases import more
from support.named_hosts import DOCTOR

BIN = sysconfig.get_path("scripts")
RUN = [sys.executable, "-m", "hocket", "run", "--no-prefix"]
NAMES = ("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
ABSENT = """here=$1; shift
if [ "$HOCKET_RANK" = 2 ]; then
    until [ -e "$here/0" ] && [ -e "$here/1" ]; do sleep 0.1; done
else
    "$@"; code=$?; touch "$here/$HOCKET_RANK"; exit $code
fi
"""
"""Rank 2 never meets, and ends when the others have."""


def started(*words: str, seconds: float = 100, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: os.environ[name] for name in NAMES if name in os.environ} | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds, env={**clean, **env})


def paragraph(out: str) -> str:
    """The words at the beginning, as one line."""
    return " ".join(out.partition("\n\n")[0].split())


def test_the_answer_comes_first_and_from_rank_0_alone() -> None:
    done = started(*RUN, "-n", "2", "--", *DOCTOR, "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    said = paragraph(done.stdout)
    assert said.startswith("2 ranks on 1 host. All reach each other: inside hosts over shm. Inside hosts a short ")
    assert re.search(r"takes [\d.]+ [um]s and bytes move at [\d.]+ [GM]B/s \(medians\)", said)
    assert "Versions, processors, variables and limits are the same on all ranks." in said
    assert done.stdout.count("ranks on 1 host") == 1
    assert "ranks 0-1 to each other: shm" in done.stdout and "    not verbs, tcp, mpi: not opened" in done.stdout
    assert len(re.findall(r"^ +[01] +", done.stdout, re.M)) >= 4, done.stdout


def test_it_ends_in_time() -> None:
    done = started(*RUN, "-n", "4", "--", *DOCTOR, "--seconds", "0.5", seconds=80)
    assert done.returncode == 0, done.stderr
    assert "Ranks outnumber the cores" in paragraph(done.stdout) or (os.cpu_count() or 1) >= 4


@pytest.mark.parametrize(
    "command",
    [
        ["mpiexec.hydra", "-n", "3"],
        *more(["prterun", "--personality", "ompi", "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "-n", "3"],
              ["torchrun", "--standalone", "--no-python", "--nproc-per-node", "3"]),
    ],
    ids=["mpich", "openmpi", "torchrun"],
)  # fmt: skip
def test_under_other_launchers(command: list[str]) -> None:
    found = shutil.which(command[0], path=BIN)
    assert found, f"{command[0]} is not installed: pip install hocket[test]"
    done = started(found, *command[1:], *DOCTOR, "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    assert "3 ranks on 1 host. All reach each other" in paragraph(done.stdout), done.stdout
    assert done.stdout.count("measured in") == 1


def test_a_rank_that_differs(tmp_path: pathlib.Path) -> None:
    """Another version of hocket, another setting, fewer files, and a name that may be a misspelt secret."""
    (tmp_path / "sitecustomize.py").write_text("import hocket; hocket.__version__ = '0.0.9'\n")
    (tmp_path / "rank.sh").write_text(
        f'if [ "$HOCKET_RANK" = 1 ]; then export PYTHONPATH={tmp_path}:$PYTHONPATH HOCKET_TIMEOUT=77 '
        'HOCKET_SECRT=correcthorsebattery; ulimit -n 200; fi; exec "$@"\n'
    )
    done = started(*RUN, "-n", "2", "--", "sh", str(tmp_path / "rank.sh"), *DOCTOR, "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    said = paragraph(done.stdout)
    wanted = "Not the same on all ranks: hocket, open files (ulimit -n), HOCKET_SECRT and HOCKET_TIMEOUT (below)."
    assert wanted in said and "Few files may be open on rank 1: ulimit -n 1024." in said
    assert f"hocket: {hocket.__version__} on rank 0; 0.0.9 on rank 1" in done.stdout
    assert "HOCKET_TIMEOUT: not set on rank 0; 77 on rank 1" in done.stdout
    assert "correcthorse" not in done.stdout + done.stderr.replace("the environment has HOCKET_SECRT", "")


def test_a_missing_rank(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rank.sh").write_text(ABSENT)
    words = [*RUN, "-n", "3", "--timeout-grace", "60", "--", "sh", str(tmp_path / "rank.sh"), str(tmp_path), *DOCTOR]
    done = started(*words, "--timeout", "4")
    assert done.returncode == 1
    assert "2 of 3 ranks came: ranks 0-1. Rank 2 did not." in done.stdout
    for rank in range(2):
        assert f"hocket doctor: rank {rank} on {os.uname().nodename} (pid " in done.stderr, done.stderr
    assert "rank 1 of 3 from hocket run" in done.stderr and "[2] did not come within 4 s" in done.stderr


def test_objects_are_not_needed() -> None:
    done = started(*RUN, "-n", "2", "--", *DOCTOR, "--seconds", "0.5", HOCKET_OBJECTS="0")
    assert done.returncode == 0 and "2 ranks on 1 host" in done.stdout, done.stderr


def test_the_picture(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "links.png"
    done = started(*RUN, "-n", "3", "--", *DOCTOR, "--seconds", "0.5", "--plot", str(place))
    assert done.returncode == 0 and f"drawn in {place}" in done.stdout, done.stderr
    assert place.read_bytes()[:4] == b"\x89PNG" and place.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--job"], "start it under a launcher, as in `hocket run -n 4"),
        (["--plot", "x.png"], "--plot goes with --job"),
    ],
)
def test_wrong_words(words: list[str], wanted: str) -> None:
    done = started(sys.executable, "-m", "hocket", "doctor", *words)
    assert done.returncode == 2 and wanted in done.stderr


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--timeout", "-1"], ["--plot", "/no/such/folder/x.png"]])
def test_wrong_values(words: list[str]) -> None:
    done = started(*RUN, "-n", "1", "--", *DOCTOR, *words)
    assert done.returncode == 2 and words[0] in done.stderr
