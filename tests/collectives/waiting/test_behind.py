"""Waits for works behind a computation: they sleep, as a yield would hand the core to who computes for a slice."""

from __future__ import annotations

import threading
import time

import numpy as np

import hocket

TURNS = 8
LATE = 0.02
"""Seconds by which the other rank's message comes later than the wait for it begins."""


def test_a_wait_sleeps_behind_a_computation_and_yields_at_other_times() -> None:
    def answer(address: str) -> None:
        with hocket.connect(address) as comm:
            for _ in range(1 + 2 * TURNS):
                comm.recv(np.zeros(1), 0)
                time.sleep(LATE)
                comm.send(np.ones(1), 0)

    with hocket.listen() as pairs:
        other = threading.Thread(target=answer, args=(pairs.address,))
        other.start()
        with pairs.accept() as comm:

            def used(computes: float) -> float:
                """CPU seconds of a wait."""
                work = comm.recv(np.zeros(1), 1, async_op=True)
                comm.send(np.ones(1), 1)
                begun = time.thread_time()
                while time.thread_time() - begun < computes:
                    pass
                begun = time.thread_time()
                work.wait()
                return time.thread_time() - begun

            used(0)
            yielding = [used(0) for _ in range(TURNS)]
            asleep = [used(0.003) for _ in range(TURNS)]
        other.join()
    assert max(yielding) > 2 * min(asleep), (yielding, asleep)  # beside others, a yield takes no CPU time
