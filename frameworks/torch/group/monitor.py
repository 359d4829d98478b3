"""monitored_barrier, which torch refuses for every backend but Gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hocket.torch.errors import ArgumentError


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """A barrier that names the ranks that did not come within `timeout` (default: the group's).

    Raises TimeoutError (of hocket and of torch) whose `missing` are all of them, on every rank that did come, whatever
    `wait_all_ranks` says; the group cannot be used afterwards.
    """
    from hocket.torch.group.process_group import ProcessGroupHocket

    found = group or dist.group.WORLD
    if not isinstance(found, ProcessGroupHocket):
        raise ArgumentError(f"monitored_barrier: {found!r} is not a group of hocket's")
    found.monitoredBarrier(timeout, wait_all_ranks)
