"""A plugin for pytest: PyTorch's tests, with hocket where they ask for Gloo.

One place is changed, the function with which torch makes every group: "gloo", no name, and "cpu:gloo,cuda:nccl" become
"hocket".  Ranks are forked from the process of the tests, which has torch loaded; torch's own way takes 9 s for each,
and starts ranks that do not have this plugin.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import seen
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal import common_distributed

GLOO = {"gloo", "undefined", "cpu:gloo", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo"}


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(seen.Ends())


make = c10d._new_process_group_helper


def made(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **options: Any) -> Any:
    if str(backend).lower() in GLOO:
        seen.group()
        if seen.BACKEND == "hocket":
            backend = dist.Backend("hocket")
    return make(size, rank, ranks, backend, *args, **options)


if seen.BACKEND == "hocket":
    import hocket.torch  # noqa: F401  # makes the name known where hocket is not installed
c10d._new_process_group_helper = made


def fork(self: Any) -> None:
    if dist.is_initialized():  # an earlier test has left its group, which the ranks would have too
        dist.destroy_process_group()
    self._start_processes(common_distributed.torch.multiprocessing.get_context("fork").Process)


common_distributed.MultiProcessTestCase._spawn_processes = fork
multiprocessing.set_start_method("fork")  # MultiProcContinuousTest takes the default, where one is set
