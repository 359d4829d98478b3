"""The command `hocket` and `hocket doctor`."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import hocket
from hocket.collectives.base.config import VARIABLES
from hocket.tools import cli
from hocket.tools.doctor import local as doctor
from hocket.transports import registry


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hocket", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **env})


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"hocket {hocket.__version__}\n")


@pytest.mark.parametrize("words", [[], ["perform"], ["--verbose"]])
def test_a_wrong_word_lists_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert all(f"hocket {name}" in err for name in ("run", "bench", "doctor"))
    assert not words or f"{words[0]!r} is no command" in err
    assert words != ["perform"] or "known: run, bench" in err


def test_a_word_that_is_nearly_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tracee"]) == 2
    assert "did you mean 'trace'?" in capsys.readouterr().err


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "hocket doctor" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["show"], ["doctor"], ["top", "--once"]])
def test_who_reads_may_go(words: list[str]) -> None:
    """The reader of `hocket doctor | head -1` goes first."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "hocket", *words]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=100)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_of_a_command() -> None:
    done = run("help", "show")
    assert done.returncode == 0 and "usage: hocket show" in done.stdout
    assert "more: hocket help COMMAND" in run("help").stdout


def test_show(tmp_path: pathlib.Path) -> None:
    assert "allreduce ring: 3 ranks" in run("show", "ring", "-n", "3").stdout
    assert "reduce_scatter ring: 4 ranks" in run("show", "reduce_scatter", "ring", "--size", "4").stdout
    assert "binomial" in run("show", "broadcast").stdout
    done = run("show", "allreduce", "ring", "tree")
    assert done.returncode == 2 and "'ring tree' is more than an algorithm" in done.stderr
    assert "ring" in run("show").stdout.split() and "binomial" in run("show", "--collective", "broadcast").stdout
    assert run("show", "ring", "-o", str(tmp_path / "ring.svg")).returncode == 0
    assert (tmp_path / "ring.svg").read_text().startswith("<svg")
    done = run("show", "rings")
    assert done.returncode == 2 and "did you mean 'ring'?" in done.stderr


def test_explain() -> None:
    out = run("explain", "-n", "2", "allreduce", "1M").stdout
    assert "rank 0 of 2" in out and "allreduce" in out and out.count("communicator 'world'") == 1
    assert "rank 0 of 1" in run("explain").stdout
    done = run("explain", "allreduce", "many")
    assert done.returncode == 2 and "many" in done.stderr


@pytest.mark.parametrize(("line", "some"), [
    ("hocket ", ["run", "help", "--version"]), ("hocket sim", ["simulate"]), ("hocket help to", ["top"]),
    ("hocket show --col", ["--collective"]), ("hocket run -n 2 -- python --", []), ("hocket run ./tr", []),
    ("hocket nope -", []), ("hocket bench allreduce --c", ["--check", "--codec"]), ("hocket doctor --j", ["--job"]),
])  # fmt: skip
def test_a_shell_completes(line: str, some: list[str]) -> None:
    found = run("complete", COMP_LINE=line).stdout.split()
    assert set(some) <= set(found) and (some or not found)
    assert all(word.startswith(line.split(" ")[-1]) for word in found)


def test_commands_get_their_words_and_give_their_code() -> None:
    assert run("run", "-n", "1", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert "COLLECTIVE" in run("bench", "--help").stdout


def test_the_command_is_declared() -> None:
    from importlib import metadata

    script = [entry for entry in metadata.entry_points(group="console_scripts") if entry.name == "hocket"]
    assert not script or script[0].value == "hocket.tools.cli:main"


def test_doctor_finds_a_working_machine() -> None:
    secret = "correct horse battery staple"
    done = run("doctor", HOCKET_SECRET=secret, HOCKET_TIMEOUT="77")
    assert done.returncode == 0, done.stdout
    out = done.stdout
    assert f"hocket {hocket.__version__}" in out and "NumPy" in out and "cores:" in out
    for each in VARIABLES:
        assert f"{each.name} = " in out
    assert secret not in out and "HOCKET_SECRET = (hidden)" in out and "HOCKET_TIMEOUT = 77" in out
    for flag in ("-n", "-l", "-v"):
        assert f"ulimit {flag}" in out
    for name, kind in registry.load()[0].items():
        if getattr(kind, "launched", False):
            assert f"{name}: not tried" in out
            continue
        assert re.search(rf"{name}: two local ranks, 8 bytes allreduced in [\d.]+ us", out)
    assert "from no launcher" in out and "everything that hocket needs works" in out


def test_doctor_says_what_is_broken() -> None:
    done = run("doctor", HOCKET_TIMEOUT="soon")
    assert done.returncode == 1
    assert "PROBLEM: HOCKET_TIMEOUT is 'soon'" in done.stdout


def test_doctor_tells_of_absent_transports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load", lambda names=None: ({}, {"verbs": "no libibverbs.so.1"}))
    lines = list(doctor._transports())
    assert "verbs: absent: no libibverbs.so.1" in lines
    assert any(line.startswith(doctor.BAD) for line in lines)


def test_doctor_reports_a_transport_that_fails() -> None:
    line = doctor._allreduce_over("pigeon")
    assert line.startswith(doctor.BAD) and "pigeon" in line
