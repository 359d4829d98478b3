"""A plugin for pytest: torchft's tests, with hocket's process groups under the names of its Gloo ones.

Its tests want Gloo's words of some errors.  Where they do, hocket's are as good (WORDS).  A group in a process of its
own has a minute to start, on both backends, as a busy machine needs more than the 10 s of the tests.  Ranks are forked:
those that torch starts anew do not have this plugin.
"""

from __future__ import annotations

import unittest
from datetime import timedelta
from typing import Any

import seen
import torch.multiprocessing
import torchft.process_group
from torch.distributed import distributed_c10d as c10d

WORDS = {
    "Connection closed by peer": "is gone during",
    "timed out after": "did not end within",
    "timeout after 10ms": "did not come within 0.01 s",
}
"""Gloo's words -> hocket's."""
ON_HOCKET = seen.BACKEND == "hocket"
Gloo, BabyGloo = torchft.process_group.ProcessGroupGloo, torchft.process_group.ProcessGroupBabyGloo
Plain: Any = Gloo
if ON_HOCKET:
    from hocket.torch.torchft import ProcessGroupHocket as Plain


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(seen.Ends())


class Group(Plain):  # type: ignore[misc]
    def _create_pg(self, *args: Any) -> Any:
        seen.group()
        return super()._create_pg(*args)


class BabyGroup(BabyGloo):
    """The group in a process of its own."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout if timeout < timedelta(seconds=1) else timedelta(seconds=60))

    @classmethod
    def _create_pg(cls, *args: Any) -> Any:
        seen.group()
        return Plain()._create_pg(*args) if ON_HOCKET else super()._create_pg(*args)


torchft.process_group.ProcessGroupGloo, torchft.process_group.ProcessGroupBabyGloo = Group, BabyGroup
make, matches = c10d._new_process_group_helper, unittest.TestCase.assertRaisesRegex


def forked(function: Any, args: Any = (), nprocs: int = 1) -> None:
    torch.multiprocessing.start_processes(function, args, nprocs, start_method="fork")


def default(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **options: Any) -> Any:
    """The default group of the tests."""
    if options.get("enable_reconfigure"):
        seen.group()
    return make(size, rank, ranks, "hocket" if ON_HOCKET and backend == "gloo" else backend, *args, **options)


c10d._new_process_group_helper, torch.multiprocessing.spawn = default, forked

if ON_HOCKET:

    def translated(self: Any, kind: Any, words: str, *args: Any, **options: Any) -> Any:
        more = [ours for theirs, ours in WORDS.items() if theirs in words]
        return matches(self, kind, "|".join([words, *more]), *args, **options)

    unittest.TestCase.assertRaisesRegex = translated
