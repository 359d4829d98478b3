"""A checkout is a place to run Python in: no folder of it hides a module that Python or a package of it wants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_no_folder_has_the_name_of_a_standard_module() -> None:
    names = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not names & {*sys.stdlib_module_names, "compression"}  # CPython 3.14's, which gzip imports


@pytest.mark.parametrize("words", [("hocket", "doctor"), ("json.tool", "tests/record.json")], ids=["hocket", "json"])
def test_modules_run_there(words: tuple[str, str]) -> None:
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, cold=True)
    assert done.returncode == 0 and done.stdout, done.stderr
