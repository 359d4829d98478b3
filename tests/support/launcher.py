"""Helpers of the tests of `hocket run`: the command, the beginning of a program, and which ranks are still there."""

import contextlib
import fcntl
import os
import pty
import re
import sys
import termios
import time

TIMES = int(os.environ.get("LAUNCHER_TIMES", "1"))  # of each way to fail: races show in twenty
RUN = [sys.executable, "-c", "import sys; from hocket.tools.run import main; sys.exit(main(sys.argv[1:]))"]


def limited(**limits):
    """The command, with other seconds of tools/run.py's."""
    lines = "".join(f"run.{name} = {seconds}; " for name, seconds in limits.items())
    return [sys.executable, "-c", f"import sys; from hocket.tools import run; {lines}sys.exit(run.main(sys.argv[1:]))"]


# Every rank says its pid on a line "pid N", so that the tests can look whether it is still there.
START = "import os, sys, time, signal; rank = int(os.environ['HOCKET_RANK']); print('pid', os.getpid());"
# One long sleep would miss a signal that comes just before it begins: Python looks behind it.
STAYS = "\nfor _ in range(3000): time.sleep(0.02)"

MEETS = """
import sys
import numpy as np
sys.modules["mpi4py"] = None  # is not here
import hocket
for turn in range(2):
    with hocket.init(timeout=20) as comm:
        print(f"<{comm.rank} {comm.size} {comm.allreduce(np.ones(3))[0]} {comm.host}>", flush=True)
        assert "the process manager (%s)" in comm.explain(), comm.explain()
"""
"""A program of ranks that meet through a process manager; its name fills the gap."""


def state(pid):
    """One letter, as proc(5) tells it; none: it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
    return ""


def alive(pid):
    return state(pid) not in ("", "Z")


def pids(text):
    return [int(found) for found in re.findall(r"pid (\d+)", text)]


def until_dead(numbers, seconds=30):
    end = time.monotonic() + seconds
    while any(map(alive, numbers)):
        assert time.monotonic() < end
        time.sleep(0.01)


def until_lines(process, count):
    return "".join(process.stdout.readline() for _ in range(count))


def in_terminal(run, n, program):
    """A run whose controlling terminal is a new one; (process, master)."""
    master, slave = pty.openpty()
    process = run.start(
        n, program, stdin=slave, stderr=slave, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    return process, master
