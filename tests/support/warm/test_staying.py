"""Ranks that stay are those of a fresh job: nothing of an earlier one is seen, and who fails ends for good."""

from __future__ import annotations

import pytest

from support.jobs import Ended, Job

BEGIN = """
import os, sys, threading, time
import hocket, numpy as np
comm = hocket.init()
assert comm.allreduce(np.ones(3))[0] == comm.size
print(os.getpid(), os.getcwd(), flush=True)
"""


def ended(size: int, source: str, **env: str) -> list[Ended]:
    with Job(size, BEGIN + source, env=env, stay=True) as job:
        return job.wait(20)


def pids(ends: list[Ended]) -> set[int]:
    assert [(end.code, end.err) for end in ends] == [(0, "")] * len(ends), ends
    return {int(end.out.split()[0]) for end in ends}


def test_processes_run_one_program_after_another() -> None:
    first = pids(ended(2, "os.chdir('/'); comm.dup(); comm.allreduce(np.ones(5), async_op=True).wait()"))
    assert first <= pids(ended(3, "assert os.getcwd() != '/'"))
    seen = pids(ended(2, "assert comm.config.timeout == 7 and os.environ['ONE']", HOCKET_TIMEOUT="7", ONE="1"))
    assert seen == pids(ended(2, "assert comm.config.timeout != 7 and 'ONE' not in os.environ; comm.close()"))


@pytest.mark.parametrize(
    "line",
    [
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "sys.kept = os.pipe()",
        "import atexit; atexit.register(print, 'at exit')",
        "sys.exit(0)",
        "from concurrent import futures; futures.ThreadPoolExecutor().submit(print)",
    ],
)
def test_what_leaves_something_is_the_last_of_its_process(line: str) -> None:
    ends = ended(2, line)
    assert ("at exit" in ends[0].out) == ("at exit" in line)
    assert not pids(ends) & pids(ended(2, ""))


def test_what_goes_wrong_is_told_as_by_a_process() -> None:
    ends = ended(2, "if comm.rank: raise ValueError('as it must')\ncomm.barrier()")
    assert ends[1].code == 1 and "ValueError: as it must" in ends[1].err and "rank.py" in ends[1].err
    assert ends[0].code == 1 and "PeerLostError" in ends[0].err and "ValueError: as it must" in ends[0].err, ends
    ends = ended(2, "if comm.rank: os.abort()\ntime.sleep(0.1)\nos._exit(3)")
    assert [end.code for end in ends] == [3, -6] and "Fatal Python error: Aborted" in ends[1].err
    ends = ended(2, "comm.broadcast(np.ones(3), comm.rank)")
    assert [end.code for end in ends] == [1, 1] and "called broadcast(float64[3], root=1)" in ends[0].err
    pids(ended(2, ""))


def test_who_is_late_is_killed() -> None:
    with pytest.raises(AssertionError, match=r"ranks \[1\] did not end within 1"), Job(
        2, "import os, time; os.environ['HOCKET_RANK'] == '1' and time.sleep(60)", stay=True
    ) as job:
        job.wait(1)
    pids(ended(2, ""))
