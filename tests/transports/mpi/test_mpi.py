"""hocket under mpirun, with Open MPI, MPICH and Intel MPI: jobs.py and laws.py, each in real processes.

The MPIs come from wheels; Intel MPI, whose libraries have MPICH's names, from a prefix of its own: `make build/impi`,
or HK_TEST_IMPI=/its/prefix.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.bench.rivals import launchers
from hocket.errors import ArgumentError
from support import worlds

HERE = os.path.dirname(os.path.abspath(__file__))
IMPI = os.environ.get("HK_TEST_IMPI") or str(Path(HERE).parents[2] / "build" / "impi")
MPIS = {"openmpi": "openmpi", "mpich": "mpich", "impi": f"impi={IMPI}"}
SURVIVE = {"openmpi": ["--runtime-options", "continuous"], "impi": ["-disable-auto-cleanup"]}
"""Options that keep a launcher from ending all ranks when one is killed.  MPICH's ends them in spite of that option."""
LEVELS = ("funneled", "serialized")
"""Single is funneled to us, and multiple the usual one."""


def others_more(*some: str) -> pytest.MarkDecorator:
    """Where what counts is hocket's own doing, whichever MPI carries it."""
    return pytest.mark.parametrize("mpi", [m if m in some else pytest.param(m, marks=pytest.mark.more) for m in MPIS])


def start(mpi: str, size: int, script: str, *words: str, options: list[str] | None = None, seconds: float = 100,
          **env: str) -> tuple[int, str]:  # fmt: skip
    """Exit code and output of a script of this folder, under that MPI's launcher."""
    try:
        line, own = launchers.mpirun(MPIS[mpi], size)
    except ArgumentError as why:
        if platform.machine() == "x86_64":
            raise
        pytest.skip(f"Intel's is for x86-64: {why}")
    command = [line[0], *(options or []), *line[1:], sys.executable, os.path.join(HERE, script), *words]
    base = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
    process = subprocess.Popen(
        command, env={**base, "PYTHONPATH": worlds.PATH, "OMP_NUM_THREADS": "1", **own, **env}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # the launcher ends its ranks
        out, _ = process.communicate(timeout=10)
        raise AssertionError(f"{script} {words} under {mpi} hangs:\n{out}") from None
    return process.returncode, out


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (["--allow-run-as-root", "--oversubscribe"], {}),
        pytest.param(
            [], {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"},
            marks=pytest.mark.more,
        ),
    ],
    ids=["options", "environment"],
)  # fmt: skip
def test_what_the_docs_say_of_root_and_of_more_ranks_than_cores(options: list[str], env: dict[str, str]) -> None:
    """Open MPI takes these; docs/mpi.md has no others."""
    line, own = launchers.mpirun("openmpi", 1)
    size = 3
    code = "import hocket; comm = hocket.init(); print(f'<{comm.rank} {comm.size} {comm.local_size}>', flush=True)"
    done = subprocess.run(
        [line[0], "--personality", "ompi", "--host", "localhost:1", *options, "-n", str(size), sys.executable, "-c",
         code],
        env={**os.environ, "PYTHONPATH": worlds.PATH, "OMP_NUM_THREADS": "1", **own, **env},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(f"<{rank} {size} {size}>" in done.stdout for rank in range(size))
    text = (Path(HERE).parents[2] / "docs" / "mpi.md").read_text()
    assert all(each in text for each in (*options, *env))


def fine(mpi: str, size: int, *jobs: str, count: int | None = None, words: tuple[str, ...] = (), **how: str) -> str:
    """They run one after another, as starting them takes longer than most."""
    code, out = start(mpi, size, "jobs.py", ",".join(jobs), *words, **how)
    for job in jobs:
        said = out.count(f"fine {job}")
        assert said == (size if count is None else count), f"{job} under {mpi} ended with {code}:\n{out}"
    return out


@others_more("openmpi")
def test_laws_between_two_ranks(mpi: str) -> None:
    code, out = start(mpi, 2, "laws.py", "apart")
    assert code == 0 and out.count("kept") == 2, out


@pytest.mark.more  # those between two ranks are the same
def test_laws_within_a_process() -> None:
    code, out = start("mpich", 1, "laws.py", "alone")
    assert code == 0 and out.count("kept") == 1, out


@pytest.mark.parametrize(
    ("mpi", "jobs"),
    [
        ("mpich", ["bits", "nans", "mismatch", "levels", "waiting", "communicators", "finalized"]),
        pytest.param("impi", ["bits", "nans"], marks=pytest.mark.more),
        pytest.param("openmpi", ["bits", "nans"], marks=pytest.mark.more),
        *(pytest.param(mpi, [job], marks=pytest.mark.more)
          for mpi in ("openmpi", "impi") for job in ("mismatch", "levels", "waiting", "communicators", "finalized")),
    ],
)  # fmt: skip
def test_three_ranks(mpi: str, jobs: list[str]) -> None:
    """The last ends MPI."""
    fine(mpi, 3, *jobs)


@others_more("openmpi")
def test_three_ranks_call_its_collectives(mpi: str) -> None:
    fine(mpi, 3, "library")


@others_more("mpich")
def test_a_rank_that_does_not_come(mpi: str, tmp_path: Path) -> None:
    fine(mpi, 2, "late", count=1, words=(str(tmp_path / "late"),))


@others_more("mpich")
@pytest.mark.parametrize("level", [LEVELS[0], pytest.param(LEVELS[1], marks=pytest.mark.more)])
def test_thread_levels(mpi: str, level: str) -> None:
    fine(mpi, 2, "levels", MPI4PY_RC_THREAD_LEVEL=level)


@pytest.mark.parametrize("mpi", ["impi", pytest.param("openmpi", marks=pytest.mark.more)])
def test_a_killed_rank_is_named(mpi: str, tmp_path: Path) -> None:
    code, out = start(mpi, 3, "jobs.py", "lost", str(tmp_path), options=SURVIVE[mpi])
    assert {each.name for each in tmp_path.iterdir()} == {"fine0", "fine2"}, f"ended with {code}:\n{out}"


def test_mpi4py_of_another_mpi() -> None:
    """The launcher is one MPI's, the library another's: each rank would be alone."""
    _, other = launchers.mpirun("mpich", 2)
    out = fine("openmpi", 2, "fallback", MPI4PY_LIBMPI=other["MPI4PY_LIBMPI"], HOCKET_LOG="info")
    assert "but the ranks were started by the launcher of Open MPI" in out


def test_mpi4py_is_not_imported_unasked() -> None:
    script = "import sys, hocket; hocket.init().close(); assert 'mpi4py' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": worlds.PATH}, check=True)
