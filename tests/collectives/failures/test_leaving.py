"""A rank that leaves while others go on: what it had finished they finish; what needs it ends at once and names it."""

from __future__ import annotations

import pathlib

import pytest

from support.faulty import facts, job

more = pytest.mark.more

LEAVES = """
comm = hocket.init(transport={transport!r}, timeout=60)
x = np.full(20, comm.rank + 1.0)
comm.broadcast(x.copy(), 2)
comm.allreduce(x.copy())
comm.sendrecv(x.copy(), (comm.rank + 1) % 3, x.copy(), (comm.rank + 2) % 3)
if comm.rank == 2:
    comm.broadcast(x, 2)
    comm.send(x, 0, tag=7)
    comm.close(timeout=0.1)  # nobody else comes to it
    ready("left")
else:
    if comm.rank == 0:
        await_file("left-2")
        time.sleep(1.5)  # more than an aborted call is given
    comm.broadcast(x, 2)
    say(first=x[0])
    if comm.rank == 0:
        comm.recv(x, 2, tag=7)
        say(came=x[0])
    else:
        await_file("left-2")
        time.sleep(0.3)
    began = time.monotonic()
    with telling():
        {call}
    say(after=time.monotonic() - began)
    comm.close()
"""
CALLS = {
    "allreduce": "comm.allreduce(x)",
    "async": "comm.allreduce(x, async_op=True).wait()",
    "recv": "comm.recv(x, 2, tag=8)",
    "another's recv": "comm.recv(x, 2 if comm.rank else 1)",
}


@pytest.mark.parametrize(
    "name", ["allreduce", "another's recv", pytest.param("async", marks=more), pytest.param("recv", marks=more)]
)
@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=more)])
def test_only_calls_that_need_it_fail(transport: str, name: str, tmp_path: pathlib.Path) -> None:
    with job(3, LEAVES.format(transport=transport, call=CALLS[name]), tmp_path) as run:
        ends = run.wait()
    said = [facts(ends[r]) for r in (0, 1)]
    for each in said:
        assert each["error"] == "PeerLostError" and each["ranks"] == [2] and each["first"] == 3, each
        assert "rank 2 is gone" in each["text"] and "has left the job" in each["text"], each
        assert each["after"] < 1.2, each
    assert said[0]["came"] == 3


PARTED = """
comm = hocket.init(transport="shm", timeout=60)
other = comm.dup()
x = np.ones(3)
other.allreduce(x.copy())
if comm.rank == 2:
    await_file("over-0")
    await_file("over-1")
    ready("late")
with telling():
    other.broadcast(x, 1 if comm.rank == 2 else 0)
if comm.rank < 2:
    ready("over")
    await_file("late-2")
    time.sleep(0.3)     # it waits by now
    comm.close(timeout=0.1)
"""


def test_another_call_of_ranks_that_have_left(tmp_path: pathlib.Path) -> None:
    """They finish a broadcast of theirs on a dup and leave: who waits for them in another is told both calls."""
    with job(3, PARTED, tmp_path) as run:
        ends = run.wait()
    assert "error" not in facts(ends[0]) and "error" not in facts(ends[1])
    told = facts(ends[2])
    assert told["error"] == "MismatchError", told
    assert "rank 0 called broadcast(float64[3], root=0), first made at" in told["text"], told
    assert "and has left the job" in told["text"] and "broadcast(float64[3], root=1)" in told["text"], told
