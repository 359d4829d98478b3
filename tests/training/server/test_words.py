"""examples/words.py: word vectors of Python's help, whose rows servers hold."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "words.py"


@pytest.mark.more
def test_words_that_are_alike_come_near() -> None:
    """By chance a word is at place 750 beside another one of 1,500."""
    command = [sys.executable, "-m", "hocket", "run", "-n", "2", "--no-prefix", "--", sys.executable, str(EXAMPLE)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"from ([\d.]+) to ([\d.]+)", done.stdout)[0])
    assert done.stdout.startswith("2 ranks, 1500 words") and last < 0.65 * first
    places = [int(place) for place in re.findall(r"is word (\d+) beside", done.stdout)]
    # Two of the three: chance gives each of them a fifth.
    assert len(places) == 3 and sorted(places)[1] < 300, done.stdout
