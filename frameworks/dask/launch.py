"""`run(client, function)`: one task on each worker, all at once, each one rank of a job of its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import distributed

from hocket import hosting
from hocket.arguments import texts
from hocket.dask.store import join
from hocket.errors import ArgumentError, PeerLostError

Result = TypeVar("Result")
LOOK = 1.0
"""Seconds between two looks at which workers are still there."""


def run(
    client: Any, function: Callable[..., Result], /, *args: Any, workers: Sequence[str] | None = None,
    timeout: float | None = None, **kwargs: Any,
) -> list[Result]:  # fmt: skip
    """Call function(comm, *args, **kwargs) on every worker of the cluster, each one rank; return the results by rank.

    - `client`: a distributed.Client that is not asynchronous.
    - `args`: a Future among them is replaced by its value, as in `client.submit`: `client.scatter(x, broadcast=True)`.
    - `workers`: addresses to use, in the order of ranks; default all workers, in the order of their addresses.
    - `timeout`: seconds for all ranks to meet (60).  A worker with no free thread comes late.

    If one rank raises, the others' calls end with an error that names it, tasks that have not ended 10 s later are
    cancelled, and that rank's error is raised here.  If a worker dies, that is PeerLostError.  A task that computes
    cannot be stopped: it ends with its next call of hocket.
    """
    if getattr(client, "asynchronous", False):
        raise ArgumentError("the client is asynchronous; pass one made with Client(...), without asynchronous=True")
    limit = hosting.limit(timeout)
    places = sorted(client.nthreads()) if workers is None else texts(workers, "workers")
    if not places or len(set(places)) < len(places):
        raise ArgumentError(
            f"workers={places}: each rank needs a worker of its own; call client.wait_for_workers(n) first"
        )
    job = f"hocket-{uuid.uuid4().hex}"
    tasks = [
        client.submit(
            _rank, job, rank, len(places), limit, kwargs, function, *args, key=f"{job}-{rank}", workers=[place],
            allow_other_workers=False, pure=False, retries=0, priority=1,
        )
        for rank, place in enumerate(places)
    ]  # fmt: skip
    try:
        return _collected(client, tasks, places)
    finally:
        client.cancel(tasks, force=True)


def _rank(
    job: str, rank: int, size: int, timeout: float, kwargs: dict[str, Any], function: Callable[..., Result], *args: Any
) -> Result:
    """The task."""
    return hosting.call(join(job, rank, size, timeout), function, *args, **kwargs)


def _collected(client: Any, tasks: Sequence[Any], places: Sequence[str]) -> list[Any]:
    """All results, in order; or the error that the others follow from."""
    errors: dict[int, BaseException] = {}
    waiting, deadline = set(range(len(tasks))), float("inf")
    while waiting and time.monotonic() < deadline:
        try:
            distributed.wait([tasks[r] for r in waiting], timeout=LOOK, return_when="FIRST_COMPLETED")
        except TimeoutError:
            present = client.nthreads()
            for rank in [r for r in waiting if places[r] not in present]:
                errors[rank] = PeerLostError(f"rank {rank}'s worker {places[rank]} has left the cluster", [rank])
        for rank in [r for r in waiting if tasks[r].status in ("error", "cancelled", "lost")]:
            errors[rank] = _error(tasks[rank], rank)
        waiting -= {r for r in waiting if tasks[r].done()} | set(errors)
        if errors:
            deadline = min(deadline, time.monotonic() + hosting.FAREWELL)
    if errors:
        raise hosting.cause([errors[rank] for rank in sorted(errors)])
    return list(client.gather(list(tasks)))


def _error(task: Any, rank: int) -> BaseException:
    if task.status != "error":
        return PeerLostError(f"rank {rank}'s task was {task.status}: its worker died, or somebody cancelled it", [rank])
    error: BaseException = task.exception()
    return error.with_traceback(task.traceback())
