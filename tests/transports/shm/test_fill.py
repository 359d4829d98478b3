"""Slots are filled through the caches or past them, whichever is faster where the cores are now."""

from __future__ import annotations

from pathlib import Path

from support import c_rules, jobs

SOURCE = Path(__file__).parent / "fill_rules.c"
MANY = """
    import numpy as np
    import hocket
    comm = hocket.init(transport="shm")
    given = [np.arange(n, dtype=np.float32) % 997 for n in (5000, 16384, 70001)]
    for step in range(400):
        for each in given:
            x = each + (comm.rank + step)
            comm.allreduce(x)
            assert np.array_equal(x, each * 3 + (3 * step + 3)), (step, each.size)
    print("right")
    comm.close()
"""
"""More slots than are filled before the other way is tried, to one reader and to all."""


def test_the_faster_way_is_found_and_copies_all(tmp_path: Path) -> None:
    c_rules.hold(SOURCE, tmp_path)


def test_results_are_right_whichever_way() -> None:
    assert jobs.run(3, MANY) == ["right\n"] * 3
