"""More ranks than one send can be read by, in one step."""

from __future__ import annotations

import numpy as np
import pytest

import hocket
from hocket.algorithms import get
from hocket.collectives.plans.instr import ChunkLayout
from hocket.collectives.plans.lower import MAX_WAYS, lower
from hocket.errors import ScheduleError

RANKS = 70


def program(comm: hocket.Communicator) -> None:
    p, me = comm.size, comm.rank
    x = np.arange(2.0 * p) + 1000 * me
    want = sum(np.arange(2.0 * p) + 1000 * r for r in range(p))
    for order in ("any", "rank"):
        got = comm.reduce_scatter(x, out=np.empty(2), algorithm="direct", order=order)
        assert (got == want[2 * me : 2 * me + 2]).all(), (order, got)
    root = comm.reduce(x, 3, algorithm="direct")
    assert root is None if me != 3 else (root == want).all()
    assert (comm.allreduce(x, out=np.empty_like(x), algorithm="one_shot") == want).all()


def test_each_operand_counts_once() -> None:
    with hocket.local_world(RANKS) as world:
        world.run(program)


def test_more_than_the_engine_takes_are_refused() -> None:
    size = MAX_WAYS + 2
    layout = ChunkLayout([8] * size, lambda chunk: (0, 8 * chunk), lambda chunk: (1, 0))
    with pytest.raises(ScheduleError, match="more than 255 ranks in one step; ask for an algorithm of more steps"):
        lower(get("reduce_scatter", "direct"), 0, size, 0, layout)
