"""The events of torch's profiler, in hocket's traces: what the ranks computed while, or before, they communicated.

    with torch.profiler.profile(on_trace_ready=hocket.torch.into_trace()):
        train()

in a job of `hocket run --trace`, or inside `with comm.trace(path):`.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

import hocket
from hocket.errors import ArgumentError
from hocket.torch.group.carrier import comm_of

MOST = 100_000
"""Events of one profile: the longest."""


def into_trace(group: Any = None) -> Callable[[Any], None]:
    """For `torch.profiler.profile(on_trace_ready=...)`: its events become spans of this rank's trace.

    `group`: whose rank this is, a process group of hocket's or a `Communicator`; default torch's default group.  There
    is a row for each thread and each GPU.  If the rank is not traced nothing happens.  Cost: 2 us an event, when the
    profiler ends; of more than 100,000 the longest are kept.  Raises ArgumentError if the group is not hocket's.
    """

    def take(profile: Any) -> None:
        comm = group if isinstance(group, hocket.Communicator) else comm_of(group or dist.group.WORLD)
        if comm is None:
            raise ArgumentError("into_trace: the process group is not hocket's: give one that is, or a Communicator")
        recorder = comm.recorder()
        if not recorder.traced:
            return
        ahead = time.monotonic_ns() - time.time_ns()  # the profiler's times are the wall clock's
        events = heapq.nlargest(MOST, profile.profiler.kineto_results.events(), key=lambda event: event.duration_ns())
        for event in events:
            begin = event.start_ns() + ahead
            recorder.span(event.name(), begin, begin + event.duration_ns(), _row(event))

    return take


def _row(event: Any) -> str:
    kind = str(event.device_type()).rpartition(".")[2]
    return f"torch thread {event.start_thread_id()}" if kind == "CPU" else f"torch {kind} {event.device_index()}"
