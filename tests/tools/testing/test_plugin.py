"""Tests on ranks, run by a real pytest: what passes, what it says of what fails, hangs or dies, and its options.

An inner run costs seconds, so one runs all of cases.py.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import pytest

from support.launcher import alive

CASES = Path(__file__).with_name("cases.py")
WELL = {
    "test_passes", "test_with_parameters[1]", "test_with_parameters[300000]", "test_without_ranks", "test_size",
    "test_paths", "test_random_numbers_differ", "test_with_a_job_of_its_own", "test_warns",
    "test_leaves_a_message", "test_leaves_a_call", "test_is_not_disturbed", "test_lives",
}  # fmt: skip


class Case(NamedTuple):
    """The outcome of a test."""

    kind: str
    """"passed", "skipped", "failure" or "error"."""
    message: str
    text: str


class Ran(NamedTuple):
    """An inner run."""

    code: int
    out: str
    cases: dict[str, Case]


def command(*options: str) -> list[str]:
    words = ["-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q"]
    return [sys.executable, *words, *options]


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HOCKET_"))}


def run(folder: Path, *options: str) -> Ran:
    shutil.copy(CASES, folder / "test_cases.py")
    words = command("--rootdir", str(folder), "--junitxml", "found.xml", *options)
    done = subprocess.run(words, cwd=folder, env=environ(), capture_output=True, text=True, timeout=110)
    found: dict[str, Case] = {}
    if (folder / "found.xml").exists():
        for case in ElementTree.parse(folder / "found.xml").iter("testcase"):
            worst = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
            said = ("passed", "", "") if worst is None else (worst.tag, worst.get("message", ""), worst.text or "")
            found[str(case.get("name"))] = Case(*said)
    return Ran(done.returncode, done.stdout + done.stderr, found)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("inner"))


def test_what_is_right_passes(ran: Ran) -> None:
    assert {name for name, case in ran.cases.items() if case.kind == "passed"} == WELL, ran.out
    assert ran.code == 1


def test_a_failure_is_shown_once_with_its_rank(ran: Ran) -> None:
    kind, message, text = ran.cases["test_fails_on_one"]
    assert kind == "failure" and message.startswith("rank 1: AssertionError: assert (1 != 1 or [1, 2, 3] == [1, 2, 4]")
    assert text.startswith("on rank 1:\n") and text.count("on rank") == 1 and "At index 2 diff: 3 != 4" in text
    assert re.findall(r"^(\S+\.py):\d+", text, re.M) == ["test_cases.py"], "frames that are not the user's"
    assert text.endswith("ranks 0, 2 failed because of this")


def test_output_has_its_rank(ran: Ran) -> None:
    section = ran.out.partition("___ test_fails_on_one ___")[2].partition("\n____")[0]
    for r in range(3):
        assert f" Captured stdout call on rank {r} " in section and section.count(f"hello from {r}") == 1
    assert " Captured stderr call on ranks 0-2 " in section and section.count("the same from all\n") == 1


def test_ranks_that_fail_alike_are_one_report(ran: Ran) -> None:
    _, message, text = ran.cases["test_fails_alike"]
    assert message.startswith("ranks 0-2: AssertionError: assert 0 == 5")
    assert text.startswith("on ranks 0-2:\n") and text.count("def test_fails_alike") == 1
    assert text.endswith("on rank 1: AssertionError: assert 1 == 5\non rank 2: AssertionError: assert 2 == 5")


def test_different_failures_are_each_shown(ran: Ran) -> None:
    text = ran.cases["test_fails_differently"].text
    assert re.findall(r"^(on rank .*|E  .*)$", text, re.M) == [
        "on rank 0:", "E           assert 1 == 2", "on rank 1:", "E           ValueError: another thing",
    ]  # fmt: skip
    assert "KeyError: 'its cause'" in text and text.endswith("rank 2 failed because of this")


def test_an_error_of_all_ranks_is_told_once(ran: Ran) -> None:
    _, message, text = ran.cases["test_calls_differ"]
    assert message.startswith("ranks 0-2: hocket.errors.MismatchError")
    assert text.count("MismatchError: the ranks called different things") == 1
    assert set(re.findall(r"^(\S+\.pyx?):\d+", text, re.M)) == {"test_cases.py"}


def test_a_failure_ends_calls_on_any_communicator(ran: Ran) -> None:
    text = ran.cases["test_fails_in_another_job"].text
    assert text.startswith("on rank 1:\n") and text.endswith("ranks 0, 2 failed because of this")


def test_what_follows_from_a_fixture_that_failed_is_not_told(ran: Ran) -> None:
    kind, message, text = ran.cases["test_begins_badly"]
    assert kind == "error" and "rank 1: AssertionError: at the beginning" in message
    assert ran.out.count("test_begins_badly - ") == 1 and text.count("E  ") == 3


def test_the_end_of_a_fixture_may_fail(ran: Ran) -> None:
    kind, message, _ = ran.cases["test_ends_badly"]
    assert kind == "error" and "rank 2: AssertionError: at the end" in message


def test_skips_and_expectations(ran: Ran) -> None:
    assert [ran.cases[f"test_{name}"].message for name in ("skipped", "skipped_inside")] == ["not today", "not here"]
    assert ran.cases["test_expected_on_one"].kind == "skipped"
    assert "[XPASS(strict)]" in ran.cases["test_unexpected"].text
    assert "1 xfailed" in ran.out and "2 skipped" in ran.out


def test_a_warning_is_told_once(ran: Ran) -> None:
    assert "1 warning" in ran.out and ran.out.count("UserWarning: careful") == 1


def test_a_rank_that_dies_is_named(ran: Ran) -> None:
    line = CASES.read_text().splitlines().index("        os.kill(os.getpid(), signal.SIGSEGV)") + 1
    kind, message, text = ran.cases["test_dies"]
    assert (kind, message) == ("failure", "rank 2 was killed by SIGSEGV")
    assert re.fullmatch(rf'rank 2 was killed by SIGSEGV\n  File ".*/test_cases.py", line {line} in test_dies', text)
    assert ran.cases["test_exits"].message == "rank 0 ended with exit code 3"
    assert "Fatal Python error" not in ran.out


def test_a_subtest_fails_and_the_test_goes_on(ran: Ran) -> None:
    found = re.findall(r"^SUBFAILED\(n='(\d)'\) test_cases.py::test_goes_on\w+ - rank (\d):", ran.out, re.M)
    assert found == [("0", "2"), ("1", "1"), ("2", "0")]
    assert "PeerLost" not in ran.out and "FAILED test_cases.py::test_goes_on" not in ran.out


def test_an_interrupt_of_one_rank_ends_its_test_alone(ran: Ran) -> None:
    case = ran.cases["test_is_interrupted"]
    assert case.message == "rank 0 ended the test by KeyboardInterrupt: by itself"
    assert case.text.count("Traceback") == 1 and "_pytest" not in case.text


def test_a_hang_ends_with_who_waits_where(ran: Ran) -> None:
    _, message, text = ran.cases["test_hangs"]
    assert message == "ranks 0-2 of 3 had not ended after 4 s; they wait for rank 1"
    assert re.search(r"rank 0 \(pid \d+, .*\): in call 1, barrier\(\) at test_cases.py:\d+ in test_hangs, waits", text)
    assert re.search(r"^rank 1 is at test_cases.py:\d+ in test_hangs$", text, re.M)
    looping = ran.cases["test_hangs_in_a_loop"]  # the limit is pytest-timeout's
    assert looping.message == "rank 2 of 3 had not ended after 4 s"
    assert re.search(r"^rank 2 is at test_cases.py:\d+ in test_hangs_in_a_loop$", looping.text, re.M)


def test_without_the_mark_there_is_no_communicator(ran: Ran) -> None:
    assert "mark this with @pytest.mark.ranks(size)" in ran.cases["test_has_no_ranks"].message


@pytest.mark.more
def test_xdist_beside_it(ran: Ran, tmp_path: Path) -> None:
    """Each of its workers has ranks of its own; what is told is the same, but for how many calls a pool has made."""
    beside = run(tmp_path, "-n", "2")

    def told(cases: dict[str, Case]) -> dict[str, tuple[str, str]]:
        lines = {name: re.sub(r"number \d+", "", case.message.partition("\n")[0]) for name, case in cases.items()}
        return {name: (cases[name].kind, line) for name, line in lines.items()}

    assert told(beside.cases) == told(ran.cases), beside.out


def test_first_failure_and_choice(tmp_path: Path) -> None:
    chosen = run(tmp_path, "-x", "-k", "passes or alike or differently or two")
    assert {name: case.kind for name, case in chosen.cases.items()} == {
        "test_passes": "passed", "test_size": "passed", "test_fails_alike": "failure",
    }  # fmt: skip


def test_a_debugger_is_refused_with_a_word(tmp_path: Path) -> None:
    refused = run(tmp_path, "--pdb")
    assert refused.code == pytest.ExitCode.USAGE_ERROR and not refused.cases
    assert "ERROR: tests on ranks cannot be used with --pdb" in refused.out and "--showlocals" in refused.out
    none = run(tmp_path, "--pdb", "-m", "not ranks", "-k", "without_ranks")
    assert none.code == 0


def test_a_wrong_mark_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("import pytest\n@pytest.mark.ranks('3')\ndef test(): pass\n")
    words = command("--rootdir", str(tmp_path), "test_wrong.py")
    done = subprocess.run(words, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_wrong.py::test: ranks('3'): size must be a whole number, at least 1" in done.stderr


BEFORE = """
import pytest, hocket
alone = hocket.init(make_default=False)     # reads the environment of this process, and has a thread
ended = []
@pytest.fixture(scope="module")
def here():
    yield
    ended.append(1)
    raise ValueError("the end")
def test_here(here): pass
@pytest.mark.ranks(2)
def test_on_ranks(comm): assert comm.size == 2 and not ended
"""
AFTER = "import sys\ndef test_ended(): assert sys.modules['test_before'].ended == [1]\n"


def test_fixtures_of_pytests_own_process_end_in_time(tmp_path: Path) -> None:
    """The last test that needs them may be one on ranks, which is not run here."""
    (tmp_path / "test_before.py").write_text(BEFORE)
    (tmp_path / "test_next.py").write_text(AFTER)
    words = command("--rootdir", str(tmp_path), "--import-mode", "importlib", "test_before.py", "test_next.py")
    done = subprocess.run(words, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=60)
    assert "ERROR test_before.py::test_on_ranks - ValueError: the end" in done.stdout
    assert "3 passed, 1 error" in done.stdout, done.stdout + done.stderr


SLEEPING = """
import os, pathlib, pytest, time
@pytest.mark.ranks(2)
def test(comm):
    pathlib.Path(f"pid-{comm.rank}").write_text(f"{os.getpid()} {os.getppid()}")
    time.sleep(100)
"""


def test_ranks_end_with_a_pytest_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_sleeping.py").write_text(SLEEPING)
    words = command("--rootdir", str(tmp_path), "test_sleeping.py")
    with subprocess.Popen(words, cwd=tmp_path, env=environ(), stdout=subprocess.DEVNULL) as pytest_process:
        files, deadline = [tmp_path / f"pid-{r}" for r in range(2)], time.monotonic() + 60
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < deadline and pytest_process.poll() is None
            time.sleep(0.02)
        pids = {pid for file in files for pid in file.read_text().split()}
        pytest_process.send_signal(signal.SIGKILL)
    assert len(pids) == 3
    while any(map(alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_without_ranks_loads_one_file_of_it() -> None:
    """Every test run of whoever has hocket loads the plug-in."""
    source = "import sys, pytest, hocket.tools.testing.plugin as _; print(*(m for m in sys.modules if m[:5] in NAMES))"
    words = [sys.executable, "-c", source.replace("NAMES", "('hocke', 'numpy')")]
    said = subprocess.run(words, capture_output=True, text=True, check=True, env=environ(), cold=True).stdout
    assert said.split() == ["hocket", "hocket.tools", "hocket.tools.testing", "hocket.tools.testing.plugin"]


def test_an_error_ends_at_the_users_call(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import hocket
import numpy as np

def differ(comm):
    comm.allreduce(np.ones(3 + comm.rank))

def test_it():
    hocket.local_world(2).run(differ)
""")
    for options, lines in ((), range(10, 40)), (("--full-trace",), range(100, 10**6)):
        words = command("--rootdir", str(tmp_path), *options, "test_it.py")
        done = subprocess.run(words, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "MismatchError: the ranks called different things" in done.stdout, done
        assert len(done.stdout.splitlines()) in lines and ("reporting.py" in done.stdout) == bool(options), done.stdout
