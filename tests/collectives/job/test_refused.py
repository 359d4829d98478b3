"""Shared memory that a system refuses is no failure of `init`: the reason is told, and TCP is used."""

from __future__ import annotations

import os

import pytest

from hocket.system.namespaces.hosts import refusal
from support import jobs
from support.worlds import PATH

WHY_NOT = refusal()

REFUSED = """
import errno, os, resource
import numpy as np, hocket
from support import limited
from hocket.transports.shm.transport import ShmTransport

def raises(self, context):
    raise OSError(errno.ENOSYS, "a reason of its own")

rank = int(os.environ["HOCKET_RANK"])
[
    lambda: limited.refuse("memfd_create", errno.EPERM),
    lambda: limited.limit(resource.RLIMIT_FSIZE, 100 << 10),
    lambda: None,
    lambda: setattr(ShmTransport, "__init__", raises),
    lambda: limited.read_only("/tmp", "/var/tmp", "/dev/shm"),
][rank]()
with hocket.init() as comm:
    assert comm.allreduce(np.ones(70000))[-1] == comm.size
    here = [line for line in comm.explain().splitlines() if "hosts" in line or "shm" in line]
    print(comm.world.transport((rank + 1) % comm.size), comm.local_rank, comm.local_size, *here, sep="|")
"""


def test_the_next_transport_is_used_and_the_host_stays_one() -> None:
    """So that no two ranks choose the same GPU.  The last one, with nothing that it can write, needs root."""
    size = 4 if WHY_NOT else 5
    told = jobs.run(size, REFUSED, PYTHONPATH=PATH, TMPDIR="/tmp")
    for rank, line in enumerate(told):
        assert line.startswith(f"tcp|{rank}|{size}|"), told
        assert "memory is shared by 0 | 1 | 2 | 3" in line, told
    reasons = [
        "memfd_create: Operation not permitted", "`ulimit -f` allows", "offers no shared memory",
        "OSError: [Errno 38] a reason of its own", "Read-only",
    ]  # fmt: skip
    for line, reason in zip(told, reasons, strict=False):
        assert reason in line, line


BROKEN = """
import numpy as np, hocket
from hocket.transports.shm.transport import ShmTransport

def __init__(self, context):
    self.no_such_thing

ShmTransport.__init__ = __init__
with hocket.init() as comm:
    print(comm.world.transport(1 - comm.rank), comm.allreduce(1))
"""


def test_a_bug_of_a_transport_is_told_and_the_next_one_is_used() -> None:
    with jobs.Job(2, BROKEN) as job:
        ends = job.wait()
    for end in ends:
        assert (end.code, end.out) == (0, "tcp 2\n") and "transport shm cannot be used" in end.err, end
        assert "AttributeError" in end.err and "line 6, in __init__" in end.err, end


WITHOUT = """
from support import limited
limited.hide({hidden!r})
import hocket
with hocket.init() as comm:
    print(comm.world.transport(1 - comm.rank), comm.local_rank, comm.allreduce(1))
"""


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize("hidden", ["/proc/sys", pytest.param("/proc", marks=pytest.mark.more)])
def test_without_proc(hidden: str) -> None:
    assert jobs.run(2, WITHOUT.format(hidden=hidden), PYTHONPATH=PATH) == ["shm 0 2\n", "shm 1 2\n"]


ADDRESSES = """
import resource
from support import limited
import numpy as np, hocket
limited.limit(resource.RLIMIT_AS, limited.addresses() + (4 << 30))
with hocket.init() as comm:
    assert all(comm.world.transport(r) == "shm" for r in range(comm.size) if r != comm.rank)
    assert comm.allreduce(np.ones(700_000))[-1] == comm.size
    mine = hocket.empty(1000)
    big = np.empty(5 << 29, np.uint8)                       # 2.5 GiB
    print(comm.local_rank, comm.local_size)
    try:
        hocket.empty(1 << 30)
    except hocket.Error as error:
        assert "a larger `ulimit -v` gives it more" in str(error), error
        print("told")
    assert hocket.local_world(4).run(lambda each: each.allreduce(1)) == [4] * 4
"""


def test_a_limit_of_addresses_leaves_most_of_them_to_the_program() -> None:
    """`ulimit -v`, as batch systems set it."""
    assert jobs.run(4, ADDRESSES, PYTHONPATH=PATH) == [f"{rank} 4\ntold\n" for rank in range(4)]


FEW = """
import hocket
from hocket.transports.shm import transport
transport._room = lambda offers: 8 << 20
with hocket.init() as comm:
    print(comm.world.transport(1 - comm.rank), comm.dup().allreduce(1), comm.world.refusal("shm", 1 - comm.rank))
"""


def test_too_few_addresses_are_a_reason_for_tcp() -> None:
    """A later communicator would find none left."""
    for said in jobs.run(2, FEW):
        assert said.startswith("tcp 2 only 8 MiB of addresses are available for shared memory, and 32 are needed"), said


LATER = """
import os, resource
from support import limited
import numpy as np
from hocket.transports.shm import channels
channels.READS = {"": ((16385, 16385),) * 2}
import hocket
comm = hocket.init(transport="shm")
WHAT
x = np.zeros(1 << 20)
try:
    comm.allgather(x)                                       # both ways: long blocks are read where they lie
    comm.send(x, 1 - comm.rank), comm.recv(x, 1 - comm.rank)    # one way: they pass through slots
except hocket.Error as error:
    print(error)
"""
FULL = "limited.limit(resource.RLIMIT_FSIZE, os.fstat(comm.world.transports['shm'].window.fd).st_size)"


def test_memory_that_ends_in_a_call_is_told() -> None:
    for said in jobs.run(2, LATER.replace("WHAT", FULL), PYTHONPATH=PATH):
        assert "no shared memory for" in said and "File too large; `ulimit -f` limits it" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_rank_that_drops_its_privileges_is_told_to_do_so_before() -> None:
    source = LATER.replace("WHAT", "comm.barrier(); limited.drop_privileges()")
    for said in jobs.run(2, source, PYTHONPATH=PATH):
        assert "has changed its user or its privileges; do that before hocket.init()" in said


def test_a_refused_eventfd_is_told_as_such() -> None:
    """More descriptors would not help."""
    source = """
        import errno, hocket
        from support import limited
        import numpy as np
        limited.refuse("eventfd2", errno.EPERM)
        try:
            hocket.init().allreduce(np.ones(3), async_op=True)
        except hocket.Error as error:
            print(error)
    """
    (said,) = jobs.run(1, source, PYTHONPATH=PATH)
    assert "Operation not permitted; this system refuses eventfd" in said
