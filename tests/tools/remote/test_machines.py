"""`hocket run --hosts a:2,b:2`: real ssh and sshd between network namespaces, hosts with names of their own."""

from __future__ import annotations

import subprocess

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
