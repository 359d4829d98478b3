"""Actors that tests use one after the other, as the start of one takes seconds: in between they leave their groups."""

from __future__ import annotations

import os
from typing import Any

import ray

FRESH = bool(os.environ.get("RAY_SUITE_FRESH"))
taken: list[Any] = []
idle: list[Any] = []


def worker(kind: Any) -> Any:
    """An idle actor, or a new one, in place of `kind.remote()`."""
    actor = idle.pop() if idle else kind.remote()
    taken.append(actor)
    return actor


def reset(actor: Any) -> None:
    """In the actor: as if it were new."""
    from ray.util.collective import collective

    for name in list(collective._group_mgr._name_group_map):
        collective._group_mgr.destroy_collective_group(name)
    actor.__init__()


def give_back() -> None:
    """After a test."""
    if not FRESH:
        ray.get([actor.__ray_call__.remote(reset) for actor in taken])
        idle.extend(taken)
    taken.clear()
