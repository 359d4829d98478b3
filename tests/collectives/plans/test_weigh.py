"""Messages go through slots, are read, written, or both, whichever is the fastest where the cores are now."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.algorithms.language.registry import get
from hocket.collectives.plans.instr import IN, OUT, ChunkLayout, Wires
from hocket.collectives.plans.lower import lower
from support import c_rules, jobs
from support.compiled import compiled

SOURCE = Path(__file__).parent / "weigh_rules.c"
COUNTS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
typedef ssize_t calls(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);
long messages_read, messages_written;
static void count(long *which, pid_t pid, const struct iovec *here, unsigned long n) {
    if (pid != getpid() && n == 1 && here->iov_len >= 4096) __atomic_fetch_add(which, 1, __ATOMIC_RELAXED);
}
#define COUNTED(name, which) \\
    ssize_t name(pid_t pid, const struct iovec *here, unsigned long n, const struct iovec *there, unsigned long m, \\
                 unsigned long flags) { \\
        count(which, pid, here, n); \\
        const char *refused = getenv("REFUSED"); \\
        if (refused && strcmp(#name, refused) == 0 && pid != getpid()) return errno = EPERM, -1; \\
        calls *real; \\
        *(void **)&real = dlsym(RTLD_NEXT, #name); \\
        return real(pid, here, n, there, m, flags); \\
    }
COUNTED(process_vm_readv, &messages_read)
COUNTED(process_vm_writev, &messages_written)
"""
"""It is put before the system's own, and counts the pieces that are read from, and written to, other processes."""
TRIES = """
    import ctypes
    import numpy as np
    from hocket.transports.shm import channels
    channels.READS = {{"": ((1 << 22, None, {weighed}, None, None),) * 2}}
    import hocket
    comm = hocket.init(transport="shm")
    lengths = {{n: np.arange(comm.size * n, dtype=np.float32) % 65521 for n in (131_072, 400_001)}}  # a shift shows
    for step in range({steps}):
        for n, numbered in lengths.items():
            x = numbered + step
            y = comm.alltoall(x + comm.rank)
            mine = x[comm.rank * n : (comm.rank + 1) * n]
            for peer in range(comm.size):
                assert np.array_equal(y[peer * n : (peer + 1) * n], mine + peer), (step, n, peer)
            assert np.array_equal(comm.allgather(x[:n] + comm.rank).reshape(-1, n)[1], x[:n] + 1), (step, n)
    told, plans = comm.explain(), comm.membership.main.engine.plans.values()
    rule = "memory from 4 MiB on (or whichever way is faster, from 128 KiB on)"
    assert (rule in told) is bool({weighed})
    assert ("reading is the faster way now for" in told) is any(plan.way == "reading" for plan in plans)
    print(*(ctypes.c_long.in_dll(ctypes.CDLL(None), f"messages_{{how}}").value for how in ("read", "written")))
    comm.close()
"""
"""`steps`: 44 are enough for tries of all ways."""
FORCED = """
    import ctypes
    import numpy as np
    import hocket
    from hocket.collectives.engine.queue import Queue
    from hocket.transports.shm import channels
    channels.READS = {{"": ((None, None),) * 2}}
    Queue.weighs = lambda self, traffic, longest: (({way!r},), 1, {way!r}) if longest > 1 << 14 else ()
    Queue.gathers_by_slots = lambda self, longest: False
    Queue.gathers_early = lambda self, longest: longest % 8 == 0        # of every other length
    comm = hocket.init(transport="shm")
    p, me = comm.size, comm.rank
    other, before = (me + 1) % p, (me - 1) % p
    for n, odd in ((24_576, 0), (24_577, 1), (786_432, 3), (3_145_729, 1)):        # 96 KiB to 12 MiB
        ramp = np.arange(n, dtype=np.float32) % 1000
        x = np.zeros(n + odd, np.float32)[odd:]
        x[:] = ramp + me
        many, out = np.concatenate([x + 10 * q for q in range(p)]), np.zeros(n + 9, np.float32)[9:]
        ranks = np.arange(p, dtype=np.float32)
        for here, there in ((1, 1), (0, 1), (1, 0)):            # in memory that both have mapped, or one of the two is
            mine, its = ((hocket.empty(n) if shared else np.empty(n, np.float32)) for shared in (here, there))
            mine[:] = x
            assert np.array_equal(comm.sendrecv(mine, other, its, before), ramp + before), n
            rows = (hocket.empty if there else np.empty)((p, n), np.float32)
            assert np.array_equal(comm.allgather(mine, out=rows), np.add.outer(ranks, ramp)), n
            assert np.array_equal(comm.broadcast(its if me else mine, root=0), ramp), n
            assert np.array_equal(comm.allreduce(mine, out=its), ramp * p + p * (p - 1) / 2), n
        assert np.array_equal(comm.broadcast(x.copy(), root=p - 1), ramp + p - 1), n
        assert np.array_equal(comm.allgather(x).reshape(p, n), np.add.outer(ranks, ramp)), n
        assert np.array_equal(comm.alltoall(many).reshape(p, n), np.add.outer(ranks, ramp + 10 * me)), n
        assert np.array_equal(comm.allreduce(x.copy()), ramp * p + p * (p - 1) / 2), n
        assert np.array_equal(comm.reduce_scatter(many), (ramp + 10 * me) * p + p * (p - 1) / 2), n
        assert np.array_equal(comm.sendrecv(x, other, out, before), ramp + before), n
        later = comm.send(x, other, async_op=True)
        assert np.array_equal(comm.recv(out, before), ramp + before), n
        later.wait()
        gathered = comm.gather(x, root=0)
        assert me or np.array_equal(gathered.reshape(p, n), np.add.outer(ranks, ramp)), n
    print(*(ctypes.c_long.in_dll(ctypes.CDLL(None), f"messages_{{how}}").value for how in ("read", "written")))
    comm.close()
"""
WANTED = {"slots": (0, 0), "reading": (1, 0), "writing": (1, 1), "both cores": (1, 1)}
"""Is anything read, and written?  What is reduced is read in any case, but for slots."""
LATE = """
    import numpy as np, os, time
    import hocket
    from hocket.collectives.engine.queue import Queue
    Queue.weighs = lambda self, traffic, longest: (({way!r},), 1, {way!r})
    comm = hocket.init(transport="shm")
    x = np.full(3_000_000, comm.rank, np.float32)
    if comm.rank == 0:                      # it has sent, and computes; nobody drives its message until it waits
        work = comm.send(x, 1, async_op=True)
        end = time.monotonic() + 30
        while not os.path.exists(f"{{__file__}}.came") and time.monotonic() < end:
            pass
        assert os.path.exists(f"{{__file__}}.came")
        work.wait()
    else:
        out = np.ones_like(x)
        comm.recv(out, 0)
        open(f"{{__file__}}.came", "w").close()
        assert not out.any()
    comm.barrier()
    if comm.rank == 0:                      # a call that fails gives its array back: nothing is written there any more
        try:
            comm.broadcast(x, root=0, timeout=0.3)
        except hocket.Error as error:
            print(type(error).__name__)
    else:
        while comm.reporter.state.verdict is None:
            time.sleep(0.01)
        try:
            comm.broadcast(x, root=0, timeout=0.3)
        except hocket.Error as error:
            print(type(error).__name__)
"""


def test_the_faster_way_is_found(tmp_path: Path) -> None:
    c_rules.hold(SOURCE, tmp_path)


def counted(size: int, source: str, folder: Path, **env: str) -> list[list[int]]:
    """Pieces that each rank has read, and written."""
    (folder / "counts.c").write_text(COUNTS)
    counts = str(compiled(folder / "counts.so", [folder / "counts.c"], "-shared", "-fPIC", "-O1"))
    return [[int(n) for n in out.split()] for out in jobs.run(size, source, LD_PRELOAD=counts, **env)]


def test_results_are_right_whichever_way(tmp_path: Path) -> None:
    for size, weighed, steps in ((2, 1 << 17, 44), (2, None, 2)):
        rows = counted(size, TRIES.format(weighed=weighed, steps=steps), tmp_path)
        assert [any(column) for column in zip(*rows, strict=True)] == [weighed is not None, False], (weighed, rows)


@pytest.mark.parametrize("way", WANTED)
def test_each_way_alone(way: str, tmp_path: Path) -> None:
    rows = counted(3 if way == "writing" else 2, FORCED.format(way=way), tmp_path)
    assert tuple(int(any(column)) for column in zip(*rows, strict=True)) == WANTED[way], rows


def test_who_may_not_write_leaves_it_to_the_reader(tmp_path: Path) -> None:
    for way in ("writing", "both cores"):
        rows = counted(2, FORCED.format(way=way), tmp_path, REFUSED="process_vm_writev")
        assert any(written for _, written in rows), (way, rows)
        assert all(read and written < 5 for read, written in rows), (way, rows)     # once with each queue's channels


def test_nobody_waits_for_who_does_not_help() -> None:
    for way in ("writing", "both cores"):
        assert set(jobs.run(2, LATE.format(way=way), stay=False)) <= {"TimeoutError\n", "PeerLostError\n"}


def test_where_messages_are_checked_their_bytes_are_read_in_order(tmp_path: Path) -> None:
    """Where both copy, the last ones may come first, and a check over them would be wrong."""
    for way in ("writing", "both cores"):
        rows = counted(2, FORCED.format(way=way), tmp_path, HOCKET_CHECK="payload,shm")
        assert all(read and not written for read, written in rows), (way, rows)


SLOW = """
    import ctypes
    import numpy as np
    from hocket.transports.shm import channels
    channels.READS = {"": ((16385, 1 << 20, 1 << 21, 1 << 16, 1 << 16),) * 2}      # as on Intel's CPUs
    import hocket
    comm = hocket.init(transport="shm")
    me, other = comm.rank, 1 - comm.rank
    counts = [ctypes.c_long.in_dll(ctypes.CDLL(None), f"messages_{how}") for how in ("read", "written")]
    ways = {"moved": ("reading", "both cores"), "reduced": ("reading", "writing"), "one way": ("slots", "both cores")}
    assert {traffic: comm.membership.main.weighs(traffic, 1 << 21)[0] for traffic in ways} == ways
    assert [comm.membership.main.gathers_early(n) for n in (16384, 16385, (1 << 22) - 1, 1 << 22)] == [0, 1, 1, 0]
    def told(call, times):
        before = [each.value for each in counts]
        for step in range(times):
            call(step)
        print(*(each.value - was for each, was in zip(counts, before)))
    ramp = np.arange(24_576, dtype=np.float32) % 1000
    x, out = np.empty_like(ramp), np.empty_like(ramp)
    def both_ways(step):
        x[:] = ramp + me + step
        assert np.array_equal(comm.sendrecv(x, other, out, other), ramp + other + step), step
    def there_and_back(step):
        x[:] = ramp + step
        for sender in (0, 1):
            if sender == me:
                comm.send(x, other)
            else:
                assert np.array_equal(comm.recv(out, other), x), step
    def reduced(step):
        assert np.array_equal(comm.allreduce(ramp + me + step), 2 * ramp + 2 * step + 1), step
    def moved(step):
        many = np.arange(1 << 20, dtype=np.float32) % 1000
        y = comm.alltoall(many + me + step).reshape(2, -1)
        assert all(np.array_equal(y[r], many.reshape(2, -1)[me] + r + step) for r in range(2)), step
    for call, times in ((both_ways, 20), (there_and_back, 600), (reduced, 600), (moved, 40)):
        told(call, times)
    comm.close()
"""
"""Calls are enough for tries of all ways: slots first go twice round a circle of 4 MiB at most."""


def test_where_slots_are_slow_messages_are_read_whole_and_other_ways_tried(tmp_path: Path) -> None:
    for row in counted(2, SLOW, tmp_path):
        both_ways, there_and_back, reduced, moved = zip(row[::2], row[1::2], strict=True)
        assert both_ways == (20, 0) and all(reduced) and there_and_back[0] and moved[0] >= 40, row


@pytest.mark.parametrize(("early", "wanted"), [(False, "send recv copy"), (True, "send copy recv")])
def test_an_own_part_is_copied_while_others_are_awaited_or_before(early: bool, wanted: str) -> None:
    layout = ChunkLayout([8] * 3, lambda chunk: (IN, 0), lambda chunk: (OUT, 8 * chunk))
    (step,) = lower(get("allgather", "direct"), 1, 3, 0, layout, Wires(early=early)).steps
    assert " ".join(dict.fromkeys(instr.kind for instr in step)) == wanted
    assert [instr.early for instr in step if instr.kind == "copy"] == [early]


GATHERED = """
    import ctypes
    import numpy as np
    from hocket.transports.shm import channels
    channels.READS = {"": ((1 << 20, None),) * 2}
    import hocket
    comm = hocket.init(transport="shm")
    read = ctypes.c_long.in_dll(ctypes.CDLL(None), "messages_read")
    for n, collective in ((1 << 19, comm.allgather), (1 << 20, comm.alltoall), (1 << 20, comm.allgather)):
        before, x = read.value, np.full(n, comm.rank, np.float32)
        y = collective(x).reshape(2, -1)
        assert (y[0] == 0).all() and (y[1] == 1).all()
        print(read.value - before)
"""


def test_an_allgather_goes_by_slots_for_longer_where_nothing_is_tried(tmp_path: Path) -> None:
    for rows in counted(2, GATHERED, tmp_path):
        assert [each > 0 for each in rows] == [False, True, True], rows
