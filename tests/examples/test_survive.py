"""examples/survive.py under `hocket run --elastic`: a rank is killed, and a newcomer takes its place."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from support.worlds import PATH

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "survive.py"


def children(pid: int) -> list[int]:
    """The processes that it has started."""
    return [int(each) for each in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.more
def test_the_example_goes_on_when_a_rank_is_killed(tmp_path: pathlib.Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")} | {"PYTHONPATH": PATH}
    options = ["-n", "3", "--no-fork", "--elastic", "--least", "2", "--most", "3"]
    command = [sys.executable, "-m", "hocket", "run", *options, str(EXAMPLE), "--steps", "150"]
    said = tmp_path / "said"
    with said.open("w") as file:
        run = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while said.read_text().count("the first step") < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(children(run.pid)[0], signal.SIGKILL)
        _, err = run.communicate(timeout=80)
    finally:
        if run.poll() is None:
            run.kill()
            run.communicate()
    out = said.read_text()
    assert run.returncode == 0, err
    ends = re.findall(r"rank (\d) of 3: weights (\w+), error ([\d.]+)", out)
    assert len(ends) == 3 and len({weights for _, weights, _ in ends}) == 1, (out, err)
    assert all(float(error) < 0.1 for *_, error in ends)
    assert "was killed by SIGKILL; the others go on" in err
