"""examples/large.py: one transformer, cut in every way, learns what one rank learns; and all parts at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "large.py"


def run(ranks: int, words: str, *more: str) -> list[float]:
    """The losses that it prints."""
    launch = [sys.executable, "-m", "hocket", "run", "-n", str(ranks), "--no-prefix", *more, "--"]
    command = [*(launch if ranks > 1 else []), sys.executable, str(EXAMPLE), *words.split()]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=env)
    assert done.returncode == 0, done.stderr
    return [float(each) for each in re.findall(r"loss ([\d.]+)", done.stdout)]


def test_it_learns_what_one_rank_learns() -> None:
    alone = run(1, "--steps 10")
    assert len(alone) == 2 and alone[1] < alone[0] - 0.3
    assert run(8, "--steps 10 --axes data=2,pipe=2,tensor=2") == pytest.approx(alone, abs=1e-8)


def test_sites_and_a_trace_of_all_of_it(tmp_path: Path) -> None:
    """Two meshes of four ranks that average now and then, a scheduler of gradients, dropped tokens, and the report."""
    trace = tmp_path / "run.json"
    losses = run(8, "--steps 10 --every 3 --capacity 1.25 --axes site=2,data=2,pipe=2", "--trace", str(trace))
    assert losses[1] < losses[0] - 0.2
    said = subprocess.run([sys.executable, "-m", "hocket", "report", str(trace)], capture_output=True, text=True)
    assert said.returncode == 0 and said.stdout.startswith("8 ranks on 1 host"), said.stderr
