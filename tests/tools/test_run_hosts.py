"""`hocket run --hosts`: ranks on network namespaces, which are gone afterwards, however the job ends."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
from typing import Any

import pytest

from hocket.system.namespaces.hosts import PREFIX, ip, refusal
from support.launcher import RUN, alive

WHY_NOT = refusal("20mbit")
here = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
PROGRAM = """
import os, time
import numpy as np
import hocket
with hocket.init() as comm:
    x = np.ones(125_000)  # 1 MB
    comm.allreduce(x)
    began = time.perf_counter()
    comm.allreduce(x)
    took = time.perf_counter() - began
    hosts = len({comm.world.transport(r) for r in range(comm.size) if r != comm.rank})
    there = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], hosts, os.uname().nodename
    print(comm.rank, *there, round(took, 3))
"""


def left(pid: int) -> list[str]:
    return [name for name in ip("netns", "list").split() if name.startswith(f"{PREFIX}{pid}")]


@here
def test_ranks_are_spread_and_the_cable_is_slow(run: Any) -> None:
    """1 MB over 20 Mbit/s takes 0.4 s; inside a host it would take none."""
    process = run.start(3, PROGRAM, "--hosts", "2", "--link", "20Mbit")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    rows = sorted(line.split()[1:] for line in out.splitlines())
    assert [row[:5] for row in rows] == [
        ["0", "0", "2", "2", "host0"], ["1", "1", "2", "2", "host0"], ["2", "0", "1", "1", "host1"]
    ]  # fmt: skip
    took = [float(row[5]) for row in rows]
    assert 0.35 < max(took) < 20, took  # who comes late finds some of it there
    assert left(process.pid) == []


@here
@pytest.mark.parametrize("how", ["interrupted", "a rank is killed", "it fails"])
def test_nothing_is_left(how: str, run: Any) -> None:
    fails = "raise SystemExit(3)" if how == "it fails" else "time.sleep(60)"
    process = run.start(2, f"import time, os\nprint(os.getpid(), flush=True)\n{fails}", "--hosts", "2", "--grace", "1",
                        "--timeout-grace", "60" if how == "it fails" else "0.3")  # fmt: skip
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    if how == "interrupted":
        assert len(left(process.pid)) == 3, "two hosts and their switch"
        process.send_signal(signal.SIGINT)
    elif how == "a rank is killed":
        os.kill(pids[1], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == {"interrupted": 130, "a rank is killed": 137, "it fails": 3}[how]
    assert left(process.pid) == [] and not any(map(alive, pids))


@here
def test_a_killed_launcher_leaves_no_process_and_the_next_one_removes_its_hosts(run: Any) -> None:
    process = run.start(2, "import time, os\nprint(os.getpid(), flush=True)\ntime.sleep(60)", "--hosts", "2")
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    other = run.start(2, "", "--hosts", "2")
    other.communicate(timeout=60)
    assert other.returncode == 0 and left(process.pid) == left(other.pid) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--hosts", "1"], "'1' is not a number of hosts, 2 to 8"),
        (["--hosts", "9"], "'9' is not a number of hosts, 2 to 8"),
        (["--hosts", "3"], "2 ranks cannot be on 3 hosts: give -n 3 or more"),
        (["--link", "20Mbit"], "--link is the rate between hosts: give --hosts, too"),
        (["--hosts", "2", "--link", "fast"], "'fast' is not a rate: give it as 20Mbit, with kbit, Mbit or Gbit"),
        (["--hosts", "2", "--elastic"], "--hosts is for jobs of one generation, without --elastic and --join"),
    ],
)
def test_bad_options(options: list[str], why: str) -> None:
    done = subprocess.run([*RUN, "-n", "2", *options, "x.py"], capture_output=True, text=True)
    assert done.returncode == 2 and why in done.stderr


@here
def test_without_the_right_to_make_hosts(run: Any, tmp_path: pathlib.Path) -> None:
    """Root without its capabilities is nobody."""
    (tmp_path / "x.py").write_text("")
    bare = ["setpriv", "--bounding-set=-net_admin,-sys_admin", "--inh-caps=-net_admin,-sys_admin"]
    done = subprocess.run([*bare, *RUN, "-n", "2", "--hosts", "2", str(tmp_path / "x.py")], env=run.env,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 1 and "network namespaces, which need root or CAP_NET_ADMIN" in done.stderr
    assert "ip netns add" in done.stderr and "Traceback" not in done.stderr
