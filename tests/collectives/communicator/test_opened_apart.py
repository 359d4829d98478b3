"""send and recv over a transport that the job has not opened: their two ranks alone call it."""

from __future__ import annotations

from support import jobs

HEAD = """
import os, time
import numpy as np, hocket
comm = hocket.init()
assert list(comm.world.transports) == ["shm"]
comm.barrier()  # all have looked before one opens another
x, y = np.full(4, float(comm.rank)), np.empty(4)
"""

TWO = HEAD + """
if comm.rank == 0:
    comm.send(x, 1, transport="tcp")
elif comm.rank == 1:
    comm.recv(y, 0, transport="tcp")
    assert (y == 0).all()
open(f"{__file__}.{comm.rank}", "w").close()
while not all(os.path.exists(f"{__file__}.{rank}") for rank in range(2)):   # in no call at all
    time.sleep(0.01)
comm.barrier()
to, of = (comm.rank + 1) % 4, (comm.rank - 1) % 4
work = comm.send(x, to, transport="tcp", async_op=True)  # each waits for the next one's recv
comm.recv(y, of, transport="tcp")
work.wait()
assert (y == of).all()
if comm.rank == 3:
    comm.send(x, 2, tag=7, transport="tcp")
elif comm.rank == 2:
    comm.recv(y, None, tag=7, transport="tcp")
    assert (y == 3).all()
halves = comm.split(comm.rank % 2)
if halves.rank == 0:
    halves.send(x, 1, transport="tcp")
else:
    halves.recv(y, 0, transport="tcp")
    assert (y == comm.rank - 2).all()
assert (comm.allreduce(x.copy(), transport="tcp") == 6).all()
comm.close()
"""


def test_only_the_two_ranks_call() -> None:
    jobs.run(4, TWO)


FROM_ANY = HEAD + """
if comm.rank == 0:
    got = []
    for _ in range(2):
        comm.recv(y, None, transport="tcp")
        got.append(y[0])
    assert sorted(got) == [1, 2], got
elif comm.rank < 3:
    comm.send(x, 0, transport="tcp")
comm.barrier()
comm.close()
"""


def test_a_recv_from_any_rank_opens_it_too() -> None:
    jobs.run(4, FROM_ANY)


LOST = HEAD + """
open(f"{__file__}.{comm.rank}", "w").close()
if comm.rank == 2:
    while not all(os.path.exists(f"{__file__}.{rank}") for rank in range(2)):   # which may be in the barrier still
        time.sleep(0.01)
    os._exit(0)
while not comm.lost:
    time.sleep(0.01)
began = time.monotonic()
try:
    comm.send(x, 1, transport="tcp") if comm.rank == 0 else comm.recv(y, 0, transport="tcp")
except hocket.PeerLostError as error:
    print(error.ranks, time.monotonic() - began < 10, flush=True)
os._exit(0)
"""


def test_a_lost_rank_is_named() -> None:
    with jobs.Job(3, LOST) as job:
        ends = job.wait()
    assert [end.out for end in ends] == ["(2,) True\n", "(2,) True\n", ""], ends
