"""The cases by name, and the ranks' main program.

Every case runs in a default group of its own, so that one failure does not make the next; `main` prints a line of JSON
per case.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import hocket.torch  # noqa: F401  makes the name known also where no entry point is installed

CASES: dict[str, tuple[int, Callable[[], None]]] = {}
"""By name: on how many ranks, and what they run.  The most ranks first: who is in no later case ends early."""
FILES = ("ddp", "hooks", "sharded", "collectives", "compiled", "groups", "outer")
place = ""
"""A directory that all ranks share."""


def case(*sizes: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def keep(function: Callable[[], None]) -> Callable[[], None]:
        CASES.update({f"{function.__name__}-{size}": (size, function) for size in sizes})
        return function

    return keep


def order() -> list[str]:
    """The names of all cases; those of the most ranks first."""
    for name in FILES:
        importlib.import_module(f"torch_training.{name}")
    return sorted(CASES, key=lambda name: -CASES[name][0])


def main() -> None:
    """argv: the shared directory, and names of cases (none: all)."""
    global place
    place, rank = sys.argv[1], int(os.environ["HOCKET_RANK"])
    backend = os.environ.get("TRAINING_BACKEND", "hocket")  # "gloo" tells whose a failure is
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    everything = order()
    for name in sys.argv[2:] or everything:
        size, function = CASES[name]
        if rank >= size:
            continue
        meet = f"file://{place}/{name}"
        dist.init_process_group(backend, init_method=meet, rank=rank, world_size=size, timeout=timedelta(seconds=90))
        torch.manual_seed(1)
        start, wrong = time.monotonic(), ""
        try:
            function()
        except Exception:
            wrong = traceback.format_exc()
            dist.group.WORLD.abort()  # the others need not wait for this rank
        dist.destroy_process_group()
        print(json.dumps([name, wrong, time.monotonic() - start]), flush=True)
