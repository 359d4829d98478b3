"""Works that hocket's own threads let be until somebody waits, as no core is free: `hocket.extending.put_off`."""

from __future__ import annotations

import re

from support import jobs

LAWS = """
    import time
    import numpy as np
    import hocket
    from hocket.extending import put_off
    comm = hocket.init(transport="shm")
    clock, never_free, free = time.perf_counter, 1e6, 0
    def sums(threads, n=3):
        works = []
        for x in [np.full(1 << 20, i + 1, np.float32) for i in range(n)]:
            works.append(comm.allreduce(x, async_op=True))
            put_off(works[-1:], threads)
        return works
    def done(works):
        return [work.done() for work in works]
    def right(works):
        return all((work.result() == (i + 1) * comm.size).all() for i, work in enumerate(works))
    def computes(works, seconds):
        until = clock() + seconds
        while clock() < until and not all(done(works)):
            sum(range(1000))
        return clock() - until + seconds
    sums(free)[2].wait()                        # channels are there
    comm.barrier()
    # While this process computes nothing moves; the wait for the last brings all to their end.
    ended = []
    for turn in range(20):                      # in one of them none has ended before it was put off
        works = sums(never_free)
        computes(works, 0.1)
        ended.append(any(done(works)))
        works[2].wait()
        assert done(works) == [True] * 3 and right(works)
        if not comm.allreduce(int(all(ended)), "max"):
            break
    assert not all(ended), ended
    # A wait for anything at all, here a message to itself, lets all go on.
    works = sums(never_free)
    computes(works, 0.1)
    comm.send(np.ones(1), comm.rank, async_op=True)
    comm.recv(np.ones(1), comm.rank, async_op=True).wait()
    assert computes(works, 20) < 20 and right(works)
    comm.barrier()
    # One that was not put off takes those before it along.
    works = [*sums(never_free, 2), comm.allreduce(np.full(1 << 20, 3, np.float32), async_op=True)]
    took = computes(works, 20)
    assert took < 20 and right(works)
    comm.barrier()
    # Where cores are free they go on at once; where the process sleeps, too.
    for threads in free, never_free:
        works = sums(threads)
        until = clock() + 20
        while clock() < until and not all(done(works)):
            time.sleep(0.002)
        assert clock() < until and right(works)
        comm.barrier()
    # Who never waits but looks has them after a second.
    for turn in range(20):                      # on a busy machine they may have ended before they were put off
        works = sums(never_free)
        took = comm.allreduce(computes(works, 20), "min")
        assert right(works)
        if took > 0.9:
            break
    print(took)
    # What has ended, or is a message to itself, is no matter.
    works = sums(free)
    right(works)
    put_off(works, never_free)
    comm.close()
"""


def test_laws() -> None:
    for text in jobs.run(2, LAWS):
        assert re.fullmatch(r"\d+\.\d+\n", text), text
        took = float(text)
        assert took > 0.9, text
        assert took < 15, text


def test_a_network_needs_no_core() -> None:
    """Over TCP they go on while the process computes."""
    source = LAWS.replace('"shm"', '"tcp"').partition("# While")[0] + """
    for turn in range(10):                      # on a busy machine not each time
        works = sums(never_free)
        took = comm.allreduce(computes(works, 0.9), "max")
        assert right(works)
        if took < 0.9:
            break
    else:
        raise AssertionError(took)
    comm.close()
"""
    assert jobs.run(2, source) == ["", ""]
