"""Ranks of torch.distributed: how their programs begin, how they are started, and what they say."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from support import jobs
from support.worlds import PATH

START = """
import json, os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import hocket, hocket.torch
rank, size = int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"])
def start(**more):
    dist.init_process_group("hocket", init_method="file://" + os.environ["PLACE"], rank=rank, world_size=size, **more)
def say(**facts):
    print(json.dumps(facts), flush=True)
def tell(error):
    kinds = [kind.__module__ + "." + kind.__name__ for kind in type(error).__mro__]
    say(text=str(error), kinds=kinds, ranks=list(getattr(error, "ranks", getattr(error, "missing", []))))
"""


def job(size: int, source: str, place: pathlib.Path, **env: str) -> jobs.Job:
    env = {"PYTHONPATH": PATH, "PLACE": str(place / "store"), **env}
    return jobs.Job(size, START + source, env=env)


def run(size: int, source: str, place: pathlib.Path) -> list[jobs.Ended]:
    """The ends of the ranks."""
    with job(size, source, place) as started:
        return started.wait(90)


def facts(end: jobs.Ended) -> dict[str, Any]:
    return {k: v for line in end.out.splitlines() if line.startswith("{") for k, v in json.loads(line).items()}
