"""A communicator's offers to those who build on it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hocket
from hocket.collectives.communicator.communicator import Communicator
from support import ports
from support.jobs import Job
from support.worlds import WORLDS, spread


def shared(comm: Communicator) -> None:
    mine = {"rank": comm.rank, "long": "x" * 10_000 * comm.rank, "row": (1, None, 0.5, True)}
    for rank, found in enumerate(comm.share(mine)):
        assert found == {"rank": rank, "long": "x" * 10_000 * rank, "row": [1, None, 0.5, True]}
    assert math.isinf(comm.share(math.inf, "a test()")[0])


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_values_are_shared(size: int, transport: str) -> None:
    """Where objects are refused, too."""
    spread(shared, size, transport, HOCKET_OBJECTS="0")


def test_what_json_lacks_is_refused_and_nothing_is_sent() -> None:
    def program(comm: Communicator) -> list[int]:
        if comm.rank:
            with pytest.raises(hocket.ArgumentError, match=r"a test\(\): \{1, 2\} cannot be shared as JSON"):
                comm.share({1, 2}, "a test()")
        with pytest.raises(hocket.ArgumentError, match=r"share\(\) needs its result at once"), hocket.group():
            comm.share(1)
        return comm.share(comm.rank)

    assert hocket.local_world(2).run(program) == [[0, 1]] * 2


def test_other_calls_of_a_share_are_told_apart() -> None:
    def program(comm: Communicator) -> None:
        with pytest.raises(hocket.MismatchError, match=r"(?s)init of A.*init of B|init of B.*init of A"):
            comm.share(1, "init of A" if comm.rank else "init of B")

    hocket.local_world(2).run(program)


ABORTED = """
import threading, time
import hocket, numpy as np
comm = hocket.init(transport="{transport}")
other, x, began = comm.dup(), np.ones(3), time.monotonic()
if comm.rank == 0:
    comm.allreduce(x)
    comm.abort(ValueError("no more data"))
    comm.abort(ValueError("a second one"))
else:
    work = comm.allreduce(x, async_op=True)
try:
    comm.barrier()
except hocket.PeerLostError as error:
    assert "no more data" in str(error) and "second" not in str(error), error
    assert comm.rank == 0 or error.ranks == (0,), error.ranks
    assert time.monotonic() - began < 60
if comm.rank:
    work.wait()
    assert x[0] == comm.size
assert other.allreduce(np.ones(1))[0] == comm.size
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_aborted_communicator_ends_on_all_ranks_and_others_go_on(transport: str) -> None:
    with Job(3, ABORTED.format(transport=transport)) as job:
        ends = job.wait()
    assert [(end.code, end.err) for end in ends] == [(0, "")] * 3, ends


QUIET = """
import threading, time
import hocket, numpy as np
comm = hocket.init()
idle = comm.dup(idle=True)
ended = []

def receive():
    try:
        idle.recv(np.zeros(1), 1 - comm.rank)
    except hocket.PeerLostError as error:
        ended.append(str(error))

thread = threading.Thread(target=receive)
thread.start()
time.sleep(0.2)
if comm.rank:
    idle.abort(ValueError("it was enough"), tell=False)
    thread.join()
    assert "it was enough" in ended[0], ended
    comm.barrier()
else:
    comm.barrier()
    time.sleep(0.5)
    assert not ended and comm.lost == ()
    comm.send(np.zeros(1), 1)
    idle.abort(ValueError("here, too"), tell=False)
    thread.join()
if comm.rank:
    comm.recv(np.zeros(1), 0)
comm.close()
"""


def test_an_abort_without_a_word_ends_this_ranks_calls_alone() -> None:
    with Job(2, QUIET) as job:
        ends = job.wait()
    assert [(end.code, end.err) for end in ends] == [(0, "")] * 2, ends


LOST = """
import os
import numpy as np
import hocket
comm = hocket.init(transport="{transport}")
near, far = comm.subgroup([0, 1]), comm.subgroup([2, 0])
assert comm.lost == ()
if comm.rank == 2:
    for rank in range(2):  # a rank that still makes its groups would fail there
        comm.recv(np.empty(1), rank)
    os.kill(os.getpid(), 9)
comm.send(np.zeros(1), 2)
try:
    comm.barrier()
except hocket.PeerLostError:
    assert comm.lost == (2,) and near.lost == () and (far is None or far.lost == (0,)), (comm.lost, near.lost)
    near.barrier()
    print("went on")
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_who_is_lost_is_known_by_its_rank_in_each_communicator(transport: str) -> None:
    with Job(3, LOST.format(transport=transport)) as job:
        ends = job.wait()
    assert all("went on" in end.out for end in ends[:2]), ends


def known(comm: Communicator) -> None:
    """By a rank of one host."""
    begun = comm.sequence
    comm.barrier()
    comm.allreduce(np.ones(2), async_op=True).wait()
    comm.sendrecv(np.ones(1), comm.rank, np.empty(1), comm.rank)
    assert comm.sequence == begun + 2 and comm.dup().sequence == 0
    assert comm.address is None and not comm.mpi and comm.lost == ()
    assert comm.config.objects and comm.config.timeout == comm.timeout == 300


@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_what_it_knows_of_itself(size: int, transport: str) -> None:
    spread(known, size, transport)


ADDRESS = "import hocket; comm = hocket.init(); print(comm.address, comm.config.iface)"


@pytest.mark.parametrize("iface", ["", "127.0.0.1"])
def test_the_address_at_which_others_reach_a_rank(iface: str) -> None:
    """The end of its connection to rank 0, or HOCKET_IFACE."""
    variables = {"HOCKET_IFACE": iface} if iface else {"HOCKET_RENDEZVOUS": f"tcp:127.0.0.1:{ports.free()[0]}"}
    with Job(2, ADDRESS, env=variables) as job:
        ends = job.wait()
    assert [end.out.split() for end in ends] == [["127.0.0.1", iface or "None"]] * 2, ends


IDLE = """
import os, time
import hocket, numpy as np
from hocket.collectives.failures import long_waits
long_waits.STILL_WAITING, warning = 0.3, long_waits.log.warning
long_waits.log.warning = lambda *args: (warning(*args), open(f"{{__file__}}.said", "w").close())
comm = hocket.init()
waiting = comm.dup(idle={idle})
until = time.monotonic() + (1.5 if {idle} else 60)
while comm.rank and not os.path.exists(f"{{__file__}}.said") and time.monotonic() < until:
    time.sleep(0.01)
waiting.barrier()
"""


@pytest.mark.parametrize("idle", [False, True])
def test_nothing_is_told_of_long_waits_of_an_idle_one(idle: bool) -> None:
    with Job(2, IDLE.format(idle=idle)) as job:
        ends = job.wait()
    assert [end.code for end in ends] == [0, 0] and ("has waited" in ends[0].err) == (not idle), ends


def test_one_that_was_made_from_another_is_not_left_when_it_is_dropped() -> None:
    def program(comm: Communicator) -> float:
        made = comm.dup()
        made.drop()
        return float(made.allreduce(np.ones(1))[0])

    assert hocket.local_world(2).run(program) == [2.0, 2.0]
