"""`hocket run --elastic` and `--join`: what died is started again and comes back as a newcomer."""

from __future__ import annotations

import re

PROGRAM = """
import os, signal, sys, time
import numpy as np
import hocket
comm = hocket.init(timeout=60)
first = comm.generation == 0
kills = first and comm.rank == 1
if first:
    comm.barrier()
    open(f"{__file__}.{comm.rank}", "w").close()
if kills:
    while not all(os.path.exists(f"{__file__}.{rank}") for rank in (0, 2)):  # which may be in the barrier still
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while first:
        comm.allreduce(np.ones(1000))
except hocket.PeerLostError:
    comm = comm.renew(least=2)
    while not comm.waiting and comm.size < 3:
        time.sleep(0.01)
    if comm.size < 3:  # else the newcomer came at once
        comm.barrier()
        comm = comm.renew()
print("size", comm.size, int(comm.allreduce(np.ones(1))[0]), flush=True)
comm.close()
"""


def test_what_died_comes_back_as_a_newcomer(run):
    code, out, err = run(3, PROGRAM, *["--elastic", "--least", "2", "--most", "3"])
    assert code == 0, err
    assert re.findall(r"size .*", out) == ["size 3 3"] * 3, (out, err)
    assert re.search(r"^\[[3-9]\] size", out, re.M) and "rank 1" in err and "goes on" not in err


def test_a_job_with_too_few_ranks_ends(run):
    code, out, err = run(3, """
import os, time, hocket
comm = hocket.init()
while comm.rank and not os.path.exists(f"{__file__}.0"):    # it may be in init still
    time.sleep(0.01)
if comm.rank:
    os._exit(7)
open(f"{__file__}.0", "w").close()
time.sleep(60)
""", *["--elastic", "--least", "2", "--restarts", "0"])
    assert code == 7 and "1 ranks are left, and --least is 2" in err


def test_newcomers_whose_job_has_ended_are_ended(run):
    code, out, err = run(2, """
import os, time, hocket
comm = hocket.init(timeout=60)
if comm.generation == 0 and comm.rank:
    while not os.path.exists(f"{__file__}.0"):  # it may be in init still
        time.sleep(0.01)
    os._exit(7)
open(f"{__file__}.0", "w").close()
while not comm.waiting:
    time.sleep(0.01)
""", *["--elastic", "--restarts", "1"])
    assert code == 0, err
    assert "; ending rank 2 (pid " in err and "SIGTERM" not in err, err


def test_options_that_do_not_fit(run):
    both = ["--elastic", "--join", "tcp:a:1"]
    for options, wanted in (
        (["--least", "2"], "are for --elastic"), (both, "one of them"),
        (["--elastic", "--least", "2"], "--least 2 ends a job of -n 1 at once"),
        (["--elastic", "--most", "0"], "'0' is not a number of ranks"),
        (["--elastic", "--restarts", "-1"], "'-1' is not a number of processes, 0 or more"),
        (["--join", "127.0.0.1:5"], "accepted: unix:/path, tcp:host:port"),
        (["--join", "tcp:a:1"], "--join: set HOCKET_SECRET"),
        (["--join", "tcp:a:1,"], "the address is ''"),
    ):  # fmt: skip
        code, _, err = run(1, "pass", *options)
        assert code == 2 and wanted in err
    assert "--most 1 has no room for the -n 2 ranks" in run(2, "pass", "--elastic", "--most", "1")[2]
