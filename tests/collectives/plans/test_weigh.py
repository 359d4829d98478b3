"""Messages that are only moved go through slots or are read, whichever is faster where the cores are now."""

from __future__ import annotations

from pathlib import Path

from support import c_rules, jobs
from support.compiled import compiled

SOURCE = Path(__file__).parent / "weigh_rules.c"
COUNTS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>
long messages_read;
ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n, const struct iovec *from, unsigned long m,
                         unsigned long flags) {
    if (pid != getpid() && n == 1 && to->iov_len >= 65536) __atomic_fetch_add(&messages_read, 1, __ATOMIC_RELAXED);
    ssize_t (*real)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);
    *(void **)&real = dlsym(RTLD_NEXT, "process_vm_readv");
    return real(pid, to, n, from, m, flags);
}
"""
"""It is put before the system's own, and counts the long pieces that are read from other processes."""
TRIES = """
    import ctypes
    import numpy as np
    from hocket.transports.shm import channels
    channels.READS = {{"": ((1 << 22, None, {weighed}),) * 2}}
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
    assert ("memory from 4 MiB on (from 128 KiB on if that is faster)" in told) is ({weighed} is not None)
    assert ("reading is the faster way now for" in told) is any(plan.reads for plan in plans)
    print(ctypes.c_long.in_dll(ctypes.CDLL(None), "messages_read").value)
    comm.close()
"""
"""`steps`: 28 are enough for tries of both ways."""


def test_the_faster_way_is_found(tmp_path: Path) -> None:
    c_rules.hold(SOURCE, tmp_path)


def test_results_are_right_whichever_way(tmp_path: Path) -> None:
    (tmp_path / "counts.c").write_text(COUNTS)
    counts = str(compiled(tmp_path / "counts.so", [tmp_path / "counts.c"], "-shared", "-fPIC", "-O1"))
    for size, weighed, steps in ((2, 1 << 17, 28), (3, 1 << 17, 28), (2, None, 2)):
        counted = jobs.run(size, TRIES.format(weighed=weighed, steps=steps), LD_PRELOAD=counts)
        assert all((int(out) > 0) == (weighed is not None) for out in counted), (size, weighed, counted)
