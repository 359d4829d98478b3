"""Blocks are read out of the sender's memory or pass through slots, as was measured, with the same results."""

from __future__ import annotations

import ctypes
import errno

import pytest

from hocket.system.machine import maker
from support import jobs

EITHER = """
    import numpy as np
    from hocket.transports.shm import channels
    channels.READS = {{"": (({moved}, {reduced}),) * 2}}
    import hocket
    comm = hocket.init(transport="shm")
    for n in (5000, 300_001, 1_200_003, 2_560_000):
        for x in (np.empty(n, np.float32), hocket.empty(n, np.float32, comm=comm)):
            x[:] = np.arange(n) % 1000 + comm.rank
            assert np.array_equal(comm.allreduce(x), np.arange(n) % 1000 * 3 + 3), n
            assert np.array_equal(comm.allgather(x[:99])[99:198], x[:99]), n
        y = np.repeat(np.arange(3.0), n) + 10 * comm.rank
        swapped = np.repeat(np.arange(3.0) * 10, n) + comm.rank
        assert np.array_equal(comm.alltoall(y), swapped), n
        assert np.array_equal(comm.reduce_scatter(y), np.full(n, 3.0 * comm.rank + 30)), n
        room = np.zeros(3 * n + 1024)               # 16 behind `y` in its page: two steps on some CPUs
        at = (y.ctypes.data + 16 - room.ctypes.data) % 4096 // 8
        assert np.array_equal(comm.alltoall(y, out=room[at : at + 3 * n]), swapped), n
    print("right")
    comm.close()
"""


@pytest.mark.parametrize(("moved", "reduced"), [(16385, 1 << 20), (1 << 21, None)])
def test_either_way(moved: int, reduced: int | str) -> None:
    assert jobs.run(3, EITHER.format(moved=moved, reduced=reduced)) == ["right\n"] * 3


MEASURED = """
    import numpy as np
    import hocket
    from hocket.collectives.choice.tuning import Reads, Tuning
    from hocket.collectives.measuring import reads
    comm = hocket.init(transport="shm")
    usual = comm.membership.main.readable.rule
    n = 1_200_003
    for rule in (Reads(16385, None), Reads(None, None), Reads(None, 65536), Reads(1 << 20, 1 << 20), None):
        comm.retune(Tuning(reads=rule))
        made = comm.split(0)                        # takes the rule of this one
        for each in (comm, made):
            assert each.membership.main.readable.rule == (usual if rule is None else rule), rule
            x = np.arange(n, dtype=np.float32) % 1000 + comm.rank
            y = each.allgather(x)
            each.allreduce(x)
            assert np.array_equal(x, np.arange(n) % 1000 * 2 + 1), rule
            assert np.array_equal(y, np.concatenate([np.arange(n) % 1000 + r for r in range(2)])), rule
    reads.SIZES, reads.SECONDS = (32 << 10, 1 << 20), 1e-4
    found = reads.measured(comm)
    assert comm.allgather_object(found) == [found] * 2 and comm.tuning.reads is None
    comm.retune(comm.tuning + Tuning(reads=Reads(1 << 20, None)))
    print(next(line for line in comm.explain().splitlines() if "sender's memory" in line))
    comm.close()
"""


def test_a_measured_rule_is_every_ranks() -> None:
    for out in jobs.run(2, MEASURED):
        assert "memory from 1 MiB on, what they reduce never (as hocket tune has measured)" in out


STAGES = """
    import ctypes, gc
    import numpy as np
    from hocket.transports.shm import channels
    channels.READS = {"": ((16385, 16385),) * 2}
    import hocket
    class Used(ctypes.Structure):                       # mallinfo2's, of glibc
        _fields_ = [(f"n{i}", ctypes.c_size_t) for i in range(10)]
    told = ctypes.CDLL(None).mallinfo2
    told.restype = Used
    comm = hocket.init(transport="shm")
    x = np.ones(1 << 18, np.float32)
    def used():
        for _ in range(20):
            with comm.dup() as made:
                made.allreduce(x.copy())                # what is read and added goes through a stage of 64 KiB
        gc.collect()
        return told().n7 + told().n4
    used()
    print(used() - used() > -10 * 65536)
    comm.close()
"""


def test_closed_channels_give_their_stages_back() -> None:
    assert jobs.run(2, STAGES) == ["True\n"] * 2


def test_the_maker_is_one_word() -> None:
    assert maker().split() in ([maker()], [])


SECRET = """
    import ctypes, itertools, mmap, os
    import numpy as np
    import hocket
    from hocket.collectives.engine.queue import Queue
    from hocket.transports.shm import channels
    channels.READS = {"": ((16385, 16385),) * 2}
    libc, MEMFD_SECRET = ctypes.CDLL(None), 447
    def secret(what):
        fd = libc.syscall(MEMFD_SECRET, 0)
        os.ftruncate(fd, what.nbytes)
        x = np.frombuffer(mmap.mmap(fd, what.nbytes), np.float32)
        os.close(fd)
        x[:] = what
        return x
    comm = hocket.init(transport="shm")
    p, me = comm.size, comm.rank
    for way in ("reading", "writing", "both cores"):
        Queue.weighs = lambda self, traffic, longest: ((way,), 1, way) if longest > 1 << 14 else ()
        for n, call in itertools.product(
            (5000, 40_000, 150_000), ("allgather", "alltoall", "broadcast", "allreduce", "one_shot", "message")
        ):
            with comm.dup() as made:                    # whose channels know nothing yet
                mine = np.arange(n, dtype=np.float32) % 1000
                x, out = secret(mine + me), secret(np.zeros(p * n, np.float32))
                if call == "allgather":
                    right = np.concatenate([mine + q for q in range(p)])
                    assert np.array_equal(made.allgather(x, out=out), right), (way, call, n)
                elif call == "alltoall":
                    many = secret(np.concatenate([mine + me + 10 * q for q in range(p)]))
                    right = np.concatenate([mine + q + 10 * me for q in range(p)])
                    assert np.array_equal(made.alltoall(many, out=out), right), (way, call, n)
                elif call == "broadcast":
                    assert np.array_equal(made.broadcast(x, root=1), mine + 1), (way, call, n)
                elif call == "message":
                    other, before = (me + 1) % p, (me - 1) % p
                    made.sendrecv(x, other, out[:n], before)
                    assert np.array_equal(out[:n], mine + before), (way, call, n)
                else:
                    made.allreduce(x, algorithm=call if call == "one_shot" else None, timeout=20)
                    assert np.array_equal(x, p * mine + sum(range(p))), (way, call, n)
    print("right")
    comm.close()
"""


def test_memory_that_nobody_else_can_read() -> None:
    """Each communicator's first such message is asked for.  (ring_stress.c hides memory on any kernel.)"""
    ctypes.set_errno(0)
    ctypes.CDLL(None, use_errno=True).syscall(447, -1)  # memfd_secret, with flags that there are not
    if ctypes.get_errno() == errno.ENOSYS:
        pytest.skip("this kernel has no secret memory")
    for size in (2, 3):
        assert jobs.run(size, SECRET) == ["right\n"] * size
