"""The order of memory, by herd7's models of C11 and ARMv8: each program holds; with any one order weakened it fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support import litmus
from support.litmus import ROOT, Program

pytestmark = pytest.mark.litmus
BUILT = ROOT / "build/herd7"
PROGRAMS = litmus.programs()
MODELS = {
    "C11": ("rc11.cat", litmus.as_c),
    "ARMv8": ("aarch64.cat", litmus.as_aarch64),
    "ARMv8.0": ("aarch64.cat", lambda program: litmus.as_aarch64(program, exclusive=True)),
    "ARMv8.3": ("aarch64.cat", lambda program: litmus.as_aarch64(program, weak_loads=True)),
}
"""The model, and what a program is compiled to: RC11 is C11 as repaired by Lahav et al. (2017); ARMv8 has the
atomics of LSE, ARMv8.0 has not; ARMv8.3 has LDAPR."""


def bad(program: Program, model: str, folder: Path) -> bool:
    """Does the model allow the bad outcome, or a race, which C11 gives no meaning?"""
    cat, write = MODELS[model]
    file = folder / f"{program.name}.litmus"
    file.write_text(write(program))
    command = [os.environ.get("HERD7") or shutil.which("herd7") or str(BUILT / "bin/herd7"), "-model", cat, str(file)]
    if (BUILT / "libdir").is_dir():
        command[1:1] = ["-I", str(BUILT / "libdir")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = re.search(r"^Observation \S+ (Never|Sometimes|Always) (\d+) (\d+)$", done.stdout, re.M)
    seen = int(found[2]) + int(found[3]) if found else 0
    assert found and seen and not done.stderr, f"{file.read_text()}\n{done.stdout}{done.stderr}"
    return found[1] != "Never" or "*undef*" in done.stdout


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.name)
def test_the_bad_outcome_is_forbidden(program: Program, model: str, tmp_path: Path) -> None:
    assert bad(program, model, tmp_path) == program.allowed


@pytest.mark.parametrize("program", [each for each in PROGRAMS if not each.allowed], ids=lambda each: each.name)
def test_each_order_is_needed(program: Program, tmp_path: Path) -> None:
    """An order that is marked as free is not: without it the program holds."""
    for told, needed, weak in program.weakened:
        failed = [model for model in MODELS if bad(weak, model, tmp_path)]
        assert bool(failed) == needed, f"{told}, weakened: fails under {failed}"


def test_two_fences_would_end_the_missed_ring(tmp_path: Path) -> None:
    """The lack of fences alone allows it."""
    program = next(each for each in PROGRAMS if each.name == "bell_missed")
    fence = litmus.Statement("thread_fence", "seq_cst")
    fenced = litmus.replace(program, threads=tuple((thread[0], fence, *thread[1:]) for thread in program.threads))
    assert not any(bad(fenced, model, tmp_path) for model in MODELS)
