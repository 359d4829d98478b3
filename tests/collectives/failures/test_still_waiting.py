"""A rank that waits long says for whom, and what that one is doing, long before the time limit."""

from __future__ import annotations

import signal

import pytest

from support.jobs import Job

LATE = """
import time
import hocket, numpy as np
from hocket.collectives.failures import long_waits
from hocket.recording import Kind
long_waits.STILL_WAITING = 0.5
comm = hocket.init(transport="{transport}")
x = np.ones(3)
comm.allreduce(x)
if comm.rank == 1:
    time.sleep(1.2)
for _ in range(2):
    {call}
own = comm.recorder().recorded()
for each in own.rings[0].records:
    if each["kind"] == Kind.LONG_WAIT:
        print(own.what(int(each["what"])).text, int(each["seq"]), each["bytes"] > 5e8)
comm.close()
"""


@pytest.mark.parametrize(
    ("transport", "call", "words"),
    [
        ("shm", "comm.allreduce(x)", "allreduce(float64[3], op='sum') at rank.py:13 in <module> has waited for 1 s"),
        ("tcp", "comm.barrier(async_op=True).wait()", "barrier() at rank.py:13 in <module> has waited for 1 s"),
    ],
)
def test_a_call_says_who_holds_it_up(transport: str, call: str, words: str) -> None:
    with Job(3, LATE.format(transport=transport, call=call)) as job:
        ends = job.wait(30)
    where = "still waiting for rank 1:\n  rank 1 is not in a call on this communicator, it is at rank.py:11 in <module>"
    assert [end.code for end in ends] == [0, 0, 0], ends
    said = ends[0].err + ends[2].err  # one of those who wait says it, once
    what = words.partition(" at ")[0]
    assert [end.out for end in ends] == [f"{what} 2 True\n", "", f"{what} 2 True\n"], "all who wait keep it"
    assert said.count(words) == 1 and said.count(where) == 1 and ends[1].err == "", ends


EARLY = """
import os, time
import hocket
from hocket.control import rendezvous
rendezvous.STILL_WAITING = 0.5
if os.environ["HOCKET_RANK"] == "1":
    time.sleep(1.2)
hocket.init().close()
"""


def test_init_says_who_has_not_come() -> None:
    with Job(3, EARLY) as job:
        ends = job.wait(30)
    assert [end.code for end in ends] == [0, 0, 0], ends
    assert "rank 0: of 3 ranks, [1] have not come yet" in ends[0].err, ends[0].err
    assert ends[1].err == "", ends[1].err


WHERE = """
import os, time
import hocket, numpy as np
from hocket.recording import Kind
comm = hocket.init()
comm.allreduce(np.ones(3))
if comm.rank == 1:
    time.sleep(2.5)
elif comm.rank == 2:
    os.kill(os.getpid(), 19)
else:
    time.sleep(0.5)
    print(comm.whereabouts("tensor a", 7.5, [0, 1, 2]), flush=True)
    own = comm.recorder().recorded()
    print([(own.what(int(each["what"])).text, int(each["bytes"])) for each in own.rings[0].records
           if each["kind"] == Kind.LONG_WAIT], flush=True)
    os._exit(0)
"""


def test_whoever_waits_for_ranks_can_ask_where_they_are() -> None:
    """Also for one that is stopped: its recorder tells."""
    with Job(3, WHERE) as job:
        job.processes[0].wait(30)
        job.signal(1, signal.SIGKILL)
        job.signal(2, signal.SIGKILL)
        said = job.wait(30)[0].out
    assert "rank 0 is not in a call on this communicator, it is at rank.py:13 in <module>" in said, said
    assert "rank 1 is not in a call on this communicator, it is at rank.py:8 in <module>" in said, said
    assert "rank 2 does not answer (process " in said and "is stopped by a signal; it has finished call 1" in said
    assert "did last: " in said and "[('tensor a', 7500000000)]" in said, said


APART = """
import time
import hocket, numpy as np
comm = hocket.init()
x = np.ones(2)
comm.allreduce(x)
if comm.rank == 1:
    time.sleep(30)
for _ in range(3):
    comm.broadcast(x, root=0)
try:
    comm.allreduce(x, timeout=0.5)
except hocket.TimeoutError as error:
    print(error, flush=True)
"""


def test_an_error_says_how_many_calls_apart_the_ranks_are() -> None:
    """The root of a broadcast goes ahead of the others."""
    with Job(2, APART) as job:
        job.processes[0].wait(30)
        job.signal(1, signal.SIGKILL)
        said = job.wait(30)[0].out
    assert "it is at rank.py:8 in <module>; it has finished 1 call here, 3 calls behind" in said, said
    assert "did last: " in said, said
