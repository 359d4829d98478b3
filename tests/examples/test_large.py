"""examples/large.py: one transformer, cut in every way, learns what one rank learns; and all parts at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import examples


def losses(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"loss ([\d.]+)", text)]


def test_it_learns_what_one_rank_learns() -> None:
    alone = losses(examples.run("large", 1, "--steps", "10"))
    assert len(alone) == 2 and alone[1] < alone[0] - 0.3
    cut = examples.run("large", 8, "--steps", "10", "--axes", "data=2,pipe=2,tensor=2")
    assert losses(cut) == pytest.approx(alone, abs=1e-8)


@pytest.mark.more
def test_sites_and_a_trace_of_all_of_it(tmp_path: Path) -> None:
    """Two meshes of four ranks that average now and then, a scheduler of gradients, dropped tokens, and the report."""
    trace = tmp_path / "run.json"
    hocket = [sys.executable, "-m", "hocket"]
    words = ["--steps", "10", "--every", "3", "--capacity", "1.25", "--axes", "site=2,data=2,pipe=2"]
    example = [str(examples.EXAMPLES / "large.py"), *words]
    launch = [*hocket, "run", "-n", "8", "--no-prefix", "--trace", str(trace)]
    done = subprocess.run([*launch, *example], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    first, last = losses(done.stdout)
    assert last < first - 0.2
    said = subprocess.run([*hocket, "report", str(trace)], capture_output=True, text=True)
    assert said.returncode == 0 and said.stdout.startswith("8 ranks on 1 host"), said.stderr
