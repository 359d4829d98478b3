"""examples/outer_sites.py: a site is killed and comes back, and all end with the same bits."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "outer_sites.py"


def test_a_site_is_lost_and_found_again() -> None:
    launch = [sys.executable, "-m", "hocket", "run", "-n", "4", "--elastic", "--least", "2", "--"]
    with subprocess.Popen([*launch, sys.executable, str(EXAMPLE)], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        lines, pids = [], {}
        for line in job.stdout:
            lines.append(line)
            if found := re.search(r"site (\d) of 4, pid (\d+), from round 0", line):
                pids[int(found[1])] = int(found[2])
            if "round 5:" in line:
                os.kill(pids[2], signal.SIGKILL)
        code = job.wait(60)
    out = "".join(lines)
    assert code == 0 and "round 5: 4 sites" in out, out
    assert re.search(r"round \d+: 3 sites", out), out
    back = re.search(r"\[4\] site 3 of 4, pid \d+, from round (\d+)", out)
    assert back and 5 < int(back[1]) < 80, out
    assert "round 80: 4 sites" in out, out
    ends = re.findall(r"([\d.]+)% of the digits, digest (\w+)", out)
    assert len(ends) == 4 and len(set(ends)) == 1 and float(ends[0][0]) > 85, out
