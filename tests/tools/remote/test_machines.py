"""`hocket run --hosts a:2,b:2`: real ssh and sshd between network namespaces, hosts with names of their own."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import time
from typing import Any

import pytest

from hocket.system.namespaces.hosts import refusal
from support.sshd import Machines

WHY_NOT = refusal()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


SUMS = """
import os, sys
import numpy as np
import hocket
with hocket.init() as comm:
    x = comm.allreduce(np.arange(1000.0) + comm.rank)
    assert np.array_equal(x, 4 * np.arange(1000.0) + 6), x
    ways = [comm.world.transport(r) for r in range(4) if r != comm.rank]
    print(os.uname().nodename, os.environ["LOCAL_RANK"], comm.host, ways, sys.argv[1:], os.getcwd(), os.environ["SAID"])
"""


def test_ranks_on_two_hosts(net: Machines) -> None:
    """Arguments arrive as they were given, in the launcher's folder, with the variables that it was told to carry."""
    words = ["it's", '"quoted" $HOME `x`', "two  spaces", "", "*"]
    program = net.folder / "sums.py"
    program.write_text(SUMS)
    command = net.run(4, "-x", "SAID=a 'b' \"c\"", str(program), *words)
    done = subprocess.run(command, env=net.env(), cwd=net.folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    for rank in range(4):
        ways = ["shm" if r == rank ^ 1 else "tcp" for r in range(4) if r != rank]
        where = f"{'ab'[rank // 2]} {rank % 2} {rank // 2} {ways}"
        assert said[f"[{rank}]"] == f"{where} {words} {net.folder} a 'b' \"c\"", said


ECHO = """
import os, sys
lines = sys.stdin if os.environ["RANK"] == "0" else (f"{i} {'x' * 60}\\n" for i in range(20000))
sys.stdout.writelines(lines)
print(sys.stdin.read(), end="")
print("last", end="")
"""


@pytest.mark.parametrize("source", ["pipe", pytest.param("file", marks=pytest.mark.more)])
def test_input_reaches_rank_0_and_no_line_of_output_is_lost(net: Machines, source: str) -> None:
    """1.3 MB of each: more than any pipe or window on the way holds, and faster than a screen shows it."""
    program, lines = net.folder / "echo.py", [f"{i} {'x' * 60}" for i in range(20000)]
    program.write_text(ECHO)
    text = "".join(f"{line}\n" for line in lines)
    (net.folder / "input").write_text(text)
    with open(net.folder / "input") as file:
        given: dict[str, Any] = {"input": text} if source == "pipe" else {"stdin": file}
        command = net.run(2, str(program), each=1)
        done = subprocess.run(command, env=net.env(), capture_output=True, text=True, timeout=60, **given)
    assert (done.returncode, done.stderr) == (0, "")
    for rank in range(2):
        said = [line[4:] for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert said == [*lines, "last"]


STOPS = """
import time
print("begun", flush=True)
time.sleep(6)
"""


@pytest.mark.more
def test_a_launcher_that_is_stopped_by_ctrl_z_keeps_its_ranks(net: Machines) -> None:
    program = net.folder / "stops.py"
    program.write_text(STOPS)
    command = net.run(2, str(program), each=1, lost=2)
    with subprocess.Popen(command, env=net.env(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and "begun" in process.stdout.readline()
        process.send_signal(signal.SIGTSTP)
        time.sleep(4)
        stopped = pathlib.Path(f"/proc/{process.pid}/stat").read_text().split()[2]
        process.send_signal(signal.SIGCONT)
        assert stopped == "T" and process.wait(30) == 0
