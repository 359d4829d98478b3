"""torch's default group of a job's ranks, on hocket."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def default_group(comm: Any) -> Iterator[tuple[Any, Any]]:
    """torch and torch.distributed, whose default group has the ranks of `comm` until the block has ended well."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    importlib.import_module("hocket.torch")  # the backend's name, also where hocket is on the path and not installed
    dist.init_process_group("hocket", init_method=f"file://{os.environ['PLACE']}/torch", rank=comm.rank,
                            world_size=comm.size, timeout=datetime.timedelta(seconds=20))  # fmt: skip
    yield torch, dist
    dist.destroy_process_group()
