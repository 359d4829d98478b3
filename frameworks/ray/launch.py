"""`run(function, n)`: n actors, each one rank of a job of its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hocket import hosting
from hocket.arguments import whole
from hocket.errors import ArgumentError, TimeoutError
from hocket.ray.store import join

Result = TypeVar("Result")


class _RankActor:
    """The actor."""

    def call(
        self, job: str, rank: int, size: int, timeout: float, function: Callable[..., Result], /, *args: Any,
        **kwargs: Any,
    ) -> Result:  # fmt: skip
        comm = join(job, rank, size, timeout, make_default=False)
        return hosting.call(comm, function, *args, **kwargs)


def run(
    function: Callable[..., Result], n: int, /, *args: Any, options: Mapping[str, Any] | None = None,
    timeout: float | None = None, **kwargs: Any,
) -> list[Result]:  # fmt: skip
    """Call function(comm, *args, **kwargs) on `n` new actors, each one rank; return their results by rank.

    - `args`: an ObjectRef among them is replaced by its value, as for a task: `ray.put` an array once for all ranks.
    - `options`: each actor's, as for Ray's `.options()`: num_cpus (1), num_gpus, resources, runtime_env, ...
    - `timeout`: seconds for Ray to find room for all of them at once, and then for them to meet (60).

    If one rank raises, the others' calls end with an error that names it, their actors are killed 10 s later at the
    latest, and that rank's error is raised here, as Ray raises a task's.  If an actor dies, Ray's error about it
    is raised.  Nothing is left behind: no actor, no placement group, no key.  Raises TimeoutError if there is no room.
    """
    n, limit = whole(n, "n"), hosting.limit(timeout)
    if n < 1:
        raise ArgumentError(f"n={n} must be at least 1")
    if not ray.is_initialized():
        ray.init()
    given = {"num_cpus": 1, **(options or {})}
    room = placement_group([_bundle(given)] * n)
    actors: list[Any] = []
    try:
        if not room.wait(limit):
            raise TimeoutError(
                f"Ray found no room for {n} ranks of {_bundle(given)} within {limit:g} s; `ray status` shows what is "
                "free"
            )
        job = f"run-{uuid.uuid4().hex}"
        for rank in range(n):
            place = PlacementGroupSchedulingStrategy(room, rank)
            actors.append(ray.remote(_RankActor).options(**{**given, "scheduling_strategy": place}).remote())
        sent = ray.put(function)
        return _collected(
            [actor.call.remote(job, rank, n, limit, sent, *args, **kwargs) for rank, actor in enumerate(actors)]
        )
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(room)


def _bundle(options: Mapping[str, Any]) -> dict[str, float]:
    """The needs of one actor, as a placement group counts them."""
    wanted = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus") or 0, **(options.get("resources") or {})}
    return {name: amount for name, amount in wanted.items() if amount} or {"CPU": 0.001}


def _collected(calls: Sequence[Any]) -> list[Any]:
    """All results, in order; or the error that the others follow from."""
    results: dict[int, Any] = {}
    errors: dict[int, BaseException] = {}
    waiting, deadline = list(calls), float("inf")
    while waiting and time.monotonic() < deadline:
        left = None if deadline == float("inf") else deadline - time.monotonic()
        done, waiting = ray.wait(waiting, timeout=left)
        for call in done:
            try:
                results[calls.index(call)] = ray.get(call)
            except Exception as error:
                errors[calls.index(call)] = error
                deadline = min(deadline, time.monotonic() + hosting.FAREWELL)
    if errors:
        raise hosting.cause([errors[rank] for rank in sorted(errors)])
    return [results[rank] for rank in range(len(calls))]
