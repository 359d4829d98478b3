"""hocket under the stopwatch: the subject that the table is about."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy

import hocket
from hocket.bench.rivals.tensors import as_tensor
from hocket.collectives.measuring.cases import Case, call_of, numpy_dtype


class Ours:
    """A subject (worker.py) of hocket's calls, as a user would write them."""

    name = "hocket"

    def __init__(
        self, collective: str = "", transport: str | None = None, algorithm: str | None = None, buffers: str = "numpy"
    ) -> None:
        """`buffers`: numpy, shared (hocket.empty) or torch."""
        self.buffers = buffers
        if algorithm:
            # By the environment, not by the call: then every call takes the way that calls without arguments take.
            where = "allreduce" if collective == "barrier" else collective
            os.environ["HOCKET_ALGORITHM"] = f"{where}={algorithm}"
        self.comm = hocket.init(transport=transport)
        self.rank, self.size = self.comm.rank, self.comm.size
        self.about = f"hocket {hocket.__version__}"

    def prepare(self, case: Case, given: Any, result: Any) -> Callable[[], object]:
        if self.buffers == "torch":
            given, result = as_tensor(given), as_tensor(result)
        return call_of(self.comm, case, given, result)

    def empty(self, case: Case, count: int) -> Any:
        made = hocket.empty if self.buffers == "shared" else numpy.empty
        return made(count, numpy_dtype(case.dtype))

    def barrier(self) -> None:
        self.comm.barrier()

    def chosen(self) -> dict[str, str]:
        """The algorithm of the latest call, and the transports it may take."""
        queue = self.comm.membership.main
        plan, transports = queue.engine.plan, "+".join(filter(None, dict.fromkeys(queue.transports)))
        return {"algorithm": plan.algorithm if plan else "", "transport": transports}


def timed(comm: hocket.Communicator, call: Callable[[], object], trials: int) -> float:
    """Seconds of one call, from a common start to the last rank's end: the median of trials."""
    call()
    seconds = []
    for _ in range(trials):
        comm.barrier()
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return float(numpy.median(comm.allreduce(numpy.array(seconds), "max")))
