"""Blocks are read out of the sender's memory or pass through slots, as the CPU's maker asks, with the same results."""

from __future__ import annotations

import harness
import pytest

from hocket.system.cpu import maker

EITHER = """
    import numpy as np
    from hocket.transports.shm import lane
    lane.FAR_MOVED, lane.FAR_REDUCED = {moved}, {reduced}
    import hocket
    comm = hocket.init(transport="shm")
    for n in (5000, 300_001, 1_200_003, 2_500_000):
        for x in (np.empty(n, np.float32), hocket.empty(n, np.float32, comm=comm)):
            x[:] = np.arange(n) % 1000 + comm.rank
            assert np.array_equal(comm.allreduce(x), np.arange(n) % 1000 * 3 + 3), n
            assert np.array_equal(comm.allgather(x[:99])[99:198], x[:99]), n
        y = np.repeat(np.arange(3.0), n) + 10 * comm.rank
        assert np.array_equal(comm.alltoall(y), np.repeat(np.arange(3.0) * 10, n) + comm.rank), n
        assert np.array_equal(comm.reduce_scatter(y), np.full(n, 3.0 * comm.rank + 30)), n
    print("right")
    comm.close()
"""


@pytest.mark.parametrize(("moved", "reduced"), [(16385, 1 << 20), (1 << 21, "lane.NEVER")])
def test_either_way(moved: int, reduced: int | str) -> None:
    assert harness.run(3, EITHER.format(moved=moved, reduced=reduced)) == ["right\n"] * 3


def test_the_maker_is_one_word() -> None:
    assert maker().split() in ([maker()], [])
