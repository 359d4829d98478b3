"""Several processes on one GPU, and ranks of a job: started, waited for within a limit, ended."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hocket.conformance.gpu_check.findings import Finding, Options
from hocket.tools.rank import environment

SPAWN = multiprocessing.get_context("spawn")  # a process that has a context must not fork
LIMIT = 20.0
"""Seconds of one call on the GPU, after which hocket gives up by itself."""


def together(name: str, calls: Sequence[Callable[[], object]], seconds: float,
             ends: Mapping[int, int] | None = None) -> Iterator[Finding]:
    """Run each call in a process of its own, which prints its rows itself; these rows are only what went wrong.

    `ends`: the exit status that is wanted of some, instead of 0.
    """
    processes = [SPAWN.Process(target=call, daemon=True) for call in calls]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    try:
        while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
            processes[0].join(0.02) if processes[0].is_alive() else time.sleep(0.02)
        late = [i for i, process in enumerate(processes) if process.is_alive()]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join(5)
    if late:
        yield Finding(name, "hangs", ok=False, note=f"processes {late} had not ended after {seconds:g} s")
    for i, process in enumerate(processes):
        wanted = (ends or {}).get(i, 0)
        if i not in late and process.exitcode != wanted:
            yield Finding(name, f"ended with {process.exitcode}", ok=False, note=f"process {i}; wanted: {wanted}")


def job(name: str, size: int, work: Callable[[Any, Options], object], options: Options, seconds: float,
        ends: Mapping[int, int] | None = None, **more: str) -> Iterator[Finding]:
    """work(comm, options) on `size` ranks of hocket."""
    with tempfile.TemporaryDirectory(prefix="hocket-gpu-") as place:
        own, secret = {"PLACE": place, "GLOO_SOCKET_IFNAME": "lo", **more}, secrets.token_hex(32)
        ranks = [own | environment(rank, size, f"unix:{place}/meet", secret) for rank in range(size)]
        yield from together(name, [partial(_rank, env, work, options) for env in ranks], seconds, ends)


def _rank(environment: dict[str, str], work: Callable[[Any, Options], object], options: Options) -> None:
    os.environ.update(environment)
    import hocket

    with hocket.init() as comm:
        work(comm, options)


def die_in(seconds: float) -> None:
    """Die by a signal that nothing here can handle or delay, whatever this process is doing then."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


DIED = -signal.SIGALRM
