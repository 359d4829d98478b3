"""A rank that waits long says for whom, and what that one is doing, long before the time limit."""

from __future__ import annotations

import pathlib
import signal

import pytest

from support.faulty import wait_for
from support.jobs import Job

LATE = """
import os
import hocket, numpy as np
from hocket.collectives.failures import long_waits
from hocket.recording import Kind
def noted(owner, name, what):
    "Open a file when this function has been called."
    function = getattr(owner, name)
    setattr(owner, name, lambda *args: (function(*args), open(f"{{__file__}}.{{what}}", "w").close()))
long_waits.STILL_WAITING = 0.5
comm = hocket.init(transport="{transport}")
x = np.ones(3)
noted(long_waits.LongWaits, "_note", comm.rank)
noted(long_waits.log, "warning", "said")
comm.allreduce(x)
if comm.rank == 1:
    os.mkfifo(f"{{__file__}}.fifo"); open(f"{{__file__}}.fifo").close()
{call}
long_waits.STILL_WAITING = 1000.0
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
        ("shm", "comm.allreduce(x)", "allreduce(float64[3], op='sum') at rank.py:18 in <module> has waited for "),
        ("tcp", "comm.barrier(async_op=True).wait()", "barrier() at rank.py:18 in <module> has waited for "),
    ],
)
def test_a_call_says_who_holds_it_up(transport: str, call: str, words: str) -> None:
    with Job(3, LATE.format(transport=transport, call=call)) as job:
        for name in ("0", "2", "said", "fifo"):
            wait_for(pathlib.Path(job.directory, f"rank.py.{name}").exists, what=name)
        open(f"{job.directory}/rank.py.fifo", "w").close()  # rank 1 may go on
        ends = job.wait()
    where = "still waiting for rank 1:\n  rank 1 is not in a call on this communicator, it is at rank.py:17 in <module>"
    assert [end.code for end in ends] == [0, 0, 0], ends
    said = ends[0].err + ends[2].err  # one of those who wait says it, once
    what = words.partition(" at ")[0]
    assert [end.out for end in ends] == [f"{what} 2 True\n", "", f"{what} 2 True\n"], "all who wait keep it"
    assert said.count(words) == 1 and said.count(where) == 1 and ends[1].err == "", ends


EARLY = """
import os, time
import hocket
from hocket.control import rendezvous
rendezvous.STILL_WAITING = 2.0
rank, warning = os.environ["HOCKET_RANK"], rendezvous.log.warning
def note(name):
    open(f"{__file__}.{name}", "w").close()
def await_note(name):
    while not os.path.exists(f"{__file__}.{name}"):
        time.sleep(0.01)
if rank == "0":
    rendezvous.log.warning = lambda *args: (warning(*args), note("said"))
    await_note("2 comes")
else:
    note(f"{rank} comes")
if rank == "1":
    await_note("said")
hocket.init().close()
"""


def test_init_says_who_has_not_come() -> None:
    with Job(3, EARLY) as job:
        ends = job.wait()
    assert [end.code for end in ends] == [0, 0, 0], ends
    assert "rank 0: of 3 ranks, [1] have not come yet" in ends[0].err, ends[0].err
    assert ends[1].err == "", ends[1].err


WHERE = """
import os, time
import hocket, numpy as np
from hocket.collectives.failures import long_waits; from hocket.recording import Kind; long_waits.ANSWERS = 3.0
comm = hocket.init()
comm.allreduce(np.ones(3))
if comm.rank == 1:
    open(f"{__file__}.1", "w").close(); time.sleep(60)
elif comm.rank == 2:
    os.kill(os.getpid(), 19)
else:
    stat = f"/proc/{comm.world.pids[2]}/stat"
    while not os.path.exists(f"{__file__}.1") or "T" not in open(stat).read().rpartition(")")[2]:
        time.sleep(0.01)
    print(comm.whereabouts("tensor a", 7.5, [0, 1, 2]), flush=True)
    own = comm.recorder().recorded()
    print([(own.what(int(each["what"])).text, int(each["bytes"])) for each in own.rings[0].records
           if each["kind"] == Kind.LONG_WAIT], flush=True)
    os._exit(0)
"""


def test_whoever_waits_for_ranks_can_ask_where_they_are() -> None:
    """Also for one that is stopped: its recorder tells."""
    with Job(3, WHERE) as job:
        job.processes[0].wait(60)
        job.signal(1, signal.SIGKILL)
        job.signal(2, signal.SIGKILL)
        said = job.wait()[0].out
    assert "rank 0 is not in a call on this communicator, it is at rank.py:15 in <module>" in said, said
    assert "rank 1 is not in a call on this communicator, it is at rank.py:8 in <module>" in said, said
    assert "rank 2 does not answer (process " in said and "is stopped by a signal; it has finished call 1" in said
    assert "did last: " in said and "[('tensor a', 7500000000)]" in said, said


APART = """
import time
import hocket, numpy as np; from hocket.control.protocol import faults; faults.GATHER = 2.0
comm = hocket.init()
x = np.ones(2)
comm.allreduce(x)
if comm.rank == 1:
    time.sleep(60)
for _ in range(3):
    comm.broadcast(x, root=0)
try:
    comm.allreduce(x, timeout=3)
except hocket.TimeoutError as error:
    print(error, flush=True)
"""


def test_an_error_says_how_many_calls_apart_the_ranks_are() -> None:
    """The root of a broadcast goes ahead of the others."""
    with Job(2, APART) as job:
        job.processes[0].wait(60)
        job.signal(1, signal.SIGKILL)
        said = job.wait()[0].out
    assert "it is at rank.py:8 in <module>; it has finished 1 call here, 3 calls behind" in said, said
    assert "did last: " in said, said
