"""The example, end to end: it is the first thing that a newcomer runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.cases import more

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


@pytest.mark.parametrize("launch", [*more([]), [sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--"]])
def test_digits(launch: list[str]) -> None:
    ranks = 2 if launch else 1
    command = [*launch, sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    found = re.search(rf"test accuracy: ([\d.]+) % by {ranks} ranks, ([\d.]+) % by one process", done.stdout)
    assert found, done.stdout
    together, alone = float(found[1]), float(found[2])
    assert together > 95 and abs(together - alone) <= 0.5
    assert f"weights: the same bits on all {ranks} ranks" in done.stdout
    assert done.stdout.count("\n") == 2, "only rank 0 prints"
