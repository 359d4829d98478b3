"""The queue of a communicator's calls on GPU arrays: its channels stand on those of the host (context.py)."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from hocket.algorithms.language.registry import Algorithm
from hocket.collectives.calls.call import Call
from hocket.collectives.calls.ops import Resolved
from hocket.collectives.engine.engine import CODES
from hocket.collectives.engine.queue import Cores, Queue, Routes
from hocket.collectives.gpu.call import OnGpu
from hocket.collectives.gpu.context import GpuContext
from hocket.collectives.plans.plan import Plan
from hocket.collectives.waiting.queued import oldest
from hocket.errors import TransportError

log = logging.getLogger("hocket")


class GpuQueue(Queue):
    """A `Queue` with this rank's part of the GPUs' own channels."""

    where = " on a GPU"
    context: GpuContext

    def __init__(
        self, context: GpuContext, name: str, index: int, routes: Routes, cores: Cores, **how: Any
    ) -> None:
        self.context = context
        inside, across = routes.between  # own names: times measured on host arrays say nothing about GPU arrays
        own = inside and context.transport, across and f"cuda over {across}"
        super().__init__(name, index, routes._replace(between=own), cores, segment=context.segment, **how)
        context.is_driven = lambda: self.engine.driven

    def offer(self) -> dict[str, Any]:
        return {**super().offer(), "gpu": self.context.offer}

    def over(self, peer: int, send: Any, recv: Any) -> tuple[Any, Any]:
        return self.context.open(peer, self.offers[peer]["gpu"], send, recv)

    def carries(self, call: Call, algorithm: Algorithm, how: Resolved) -> bool:
        return self.context.carries(call, algorithm, how)

    def prepared(self, call: Call, how: Resolved, plan: Plan, apart: bool) -> OnGpu:
        return OnGpu(self.context, call, how, plan, apart)

    def abort(self) -> None:
        self.context.abort()

    def settle(self, limit: float) -> None:
        """Let calls that nobody waited for end before the last barrier, on the GPU too.

        So after the barrier no rank waits long for another to unmap its memory.
        """
        deadline = time.monotonic() + limit
        while (first := oldest(self.engine)) is not None:
            if not first.wait(max(0.0, deadline - time.monotonic())) or first.status != CODES["done"]:
                return
        with contextlib.suppress(TransportError):  # that GPU is lost
            self.context.device.settle()
        meeting = self.context.meeting
        if meeting is not None and meeting.given_up:  # and no later call has raised it
            log.error("at close: the result of an earlier call is wrong: %s", meeting.given_up)

    def let_go(self) -> None:
        with contextlib.suppress(TransportError):  # a GPU that is lost gives nothing back
            self.context.close()
