"""README, first steps, the page on tests: their examples, run by the command in their first line; README's length."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig

import pytest

from support import ports

ROOT = pathlib.Path(__file__).parents[1]
README, *OTHERS = ((ROOT / page).read_text() for page in ("README.md", "docs/start.md", "docs/testing.md"))
PROGRAM = re.compile(r"```python\n(# (\w+)\.py +(\S[^\n]*)\n.*?)```", re.S)
EXAMPLES = {name: (command, source) for source, name, command in PROGRAM.findall("".join([README, *OTHERS]))}


def test_it_is_read_in_three_screens() -> None:
    assert len(README.splitlines()) <= 150 and len(README.split()) <= 1100


def test_make_run_traces_its_training_and_names_the_page_and_the_plot() -> None:
    told = subprocess.run(["make", "-n", "run"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (trace,) = re.findall(r"hocket run --trace (\S+) ", told)
    (page,) = re.findall(rf"hocket report {trace} -o (\S+)", told)
    (plot,) = re.findall(r"--plot (\S+)", told)
    assert {page, plot} <= set(re.findall(r"[\w/.]+", told.rpartition("echo ")[2]))


def test_there_is_an_example_for_each_reader_and_a_first_one() -> None:
    tests = {"test_average", "test_group", "test_threads"}
    assert set(EXAMPLES) == {"arrays", "slow_link", "survivors", "first", *tests}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("arrays", {re.escape(f"{rank}1.5[0123][4.]"): 1 for rank in range(4)}),
        ("slow_link", {re.escape(f"{rank}{{}}True"): 1 for rank in range(4)}),
        ("survivors", {r"lost\(1,\)sum[23]\.0": 2}),  # 3: the one that was started again is there already
        ("first", {re.escape(f"rank{rank}of4[6.10.14.]"): 1 for rank in range(4)}),
        ("test_average test_group test_threads", {"=4passedin": 1}),  # in one run
    ],
)
def test_it_runs(names: str, said: dict[str, int], tmp_path: pathlib.Path) -> None:
    """`said`: how often the ranks print what (an expression), spaces left out."""
    for name in names.split():
        (tmp_path / f"{name}.py").write_text(EXAMPLES[name][1])
    first, *others = (EXAMPLES[name][0] for name in names.split())
    command = " ".join([first, *(other.removeprefix("pytest ") for other in others)])
    env = {
        **os.environ, "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PET_MASTER_PORT": str(ports.free()[0]),  # torchrun's: two test runs may share a machine
    }  # fmt: skip
    done = subprocess.run(shlex.split(command), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    out = "".join(done.stdout.split())
    assert {text: len(re.findall(text, out)) for text in said} == said, done.stdout
