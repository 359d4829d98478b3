"""Ok-Topk: what comes is the largest of the sum, by thresholds that stay; what did not come is its senders' again."""

from __future__ import annotations

from typing import Any

import numpy as np

import hocket
from hocket.collectives.communicator.communicator import Communicator
from hocket.compression import Compressor
from hocket.compression.sparse.largest_sums import EVERY, OFF
from support.worlds import spread

Array = np.ndarray[Any, Any]
N, K = 3000, 60


def vector(rank: int, step: int = 0) -> Array:
    return np.random.default_rng([rank, step]).standard_normal(N).astype(np.float32)


def largest_of(x: Array, k: int) -> Array:
    """x, and zeros where it is not among its k largest."""
    return np.asarray(np.where(np.abs(x) >= np.sort(np.abs(x))[-k], x, 0))


def the_largest_of_the_sum_come(comm: Communicator) -> None:
    """The first call has exact thresholds: NumPy finds the same."""
    c, x = Compressor(comm, f"oktopk:{K / N}"), vector(comm.rank)
    sent = [largest_of(vector(r), K) for r in range(comm.size)]
    right = largest_of(np.sum(sent, 0, dtype=np.float64), K) / comm.size
    came = c.allreduce(x.copy(), "w")
    np.testing.assert_allclose(came, right, rtol=1e-6)
    assert np.count_nonzero(came) == K, "as many, whatever the number of ranks"
    owed = c.state_dict()["entries"]["w"]["residual"]
    gone = (came != 0) & (sent[comm.rank] != 0)
    assert np.array_equal(owed, np.where(gone, 0, x)), "what a rank has sent and did not come, it owes"


def thresholds_stay(comm: Communicator) -> None:
    """Between two exact ones a call makes three calls fewer; a vector of another scale has them found anew."""

    def calls(step: int, scale: float = 1.0) -> tuple[int, int]:
        before = sum(stat.calls for stat in comm.stats())
        came = c.allreduce(np.float32(scale) * vector(comm.rank, step), "w")
        return sum(stat.calls for stat in comm.stats()) - before, np.count_nonzero(came)

    c = Compressor(comm, f"oktopk:{K / N}", feedback=False)
    made = [calls(step) for step in range(EVERY + 1)]
    assert made[0][0] == made[1][0] + 3 and made[EVERY][0] == made[1][0] + 2, "thresholds, and regions at the beginning"
    assert all(K / OFF <= count <= OFF * K for _, count in made), made
    assert {calls_made for calls_made, _ in made[1:EVERY]} == {made[1][0]}
    calls(EVERY + 1, 0.01)  # no sum reaches the threshold
    assert calls(EVERY + 2, 0.01)[1] == K, "the next one is exact again"


def zeros_are_not_sent(comm: Communicator) -> None:
    for method in ("oktopk:0.5", "doublesqueeze:topk:0.5"):
        c = Compressor(comm, method)
        for x in (np.zeros(8, np.float32), np.eye(1, 8, dtype=np.float32)[0], np.zeros(0, np.float32)):
            key = f"{len(x)} {x.any()}"
            assert np.array_equal(c.allreduce(x.copy(), key), x) and c.stats(key).sent <= 6 * comm.size


def test_programs() -> None:
    programs = [the_largest_of_the_sum_come, thresholds_stay, zeros_are_not_sent]
    spread(programs, 3, "threads")
    spread([the_largest_of_the_sum_come, zeros_are_not_sent], 1, "threads")


def test_the_owner_of_a_part_keeps_what_is_not_among_its_largest() -> None:
    """DoubleSqueeze with top-k: three elements of each rank, and two of each half of the sum."""

    def job(comm: Communicator) -> tuple[list[float], list[float]]:
        c = Compressor(comm, "doublesqueeze:topk:0.34")
        x = np.array([[8, 1, 3, 4, 0, 9], [0, 6, 3, 4, 0, 0]][comm.rank], np.float32)
        return c.allreduce(x, "w").tolist(), c.state_dict()["entries"]["w"]["kept"]["owned"].tolist()

    assert hocket.local_world(2).run(job) == [([4, 3, 0, 4, 0, 4.5], [0, 0, 1.5]), ([4, 3, 0, 4, 0, 4.5], [0, 0, 0])]
