"""Parts that need torch: torch's default group on hocket, and whether a check is right on all ranks."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from hocket.conformance.gpu_check.findings import Finding, Options, say
from hocket.conformance.gpu_check.kinds import missing
from hocket.conformance.gpu_check.processes import job

DEVICE = os.environ.get("GPU_CHECK_DEVICE", "cuda")
"""cpu: to try these files where there is no GPU."""


def with_torch(
    what: str, jobs: dict[str, Callable[[Any, Options], object]], options: Options, seconds: float
) -> Iterator[Finding]:
    """Jobs of two ranks, by name, if torch has a GPU; else `what` is not checked."""
    if why := missing("torch") if DEVICE == "cuda" else "":
        yield Finding(what, "not checked", note=why)
        return
    for name, ranks in jobs.items():
        yield from job(f"{name}, 2 ranks", 2, ranks, options, seconds)


def right(comm: Any, name: str, check: Callable[[], str]) -> bool:
    """Say whether `check` finds nothing wrong on any rank.  It says what is; "": nothing.  Collective."""
    try:
        why = check()
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {str(error)[:300]}"
    ok = not any(comm.share(bool(why), name))
    if why or comm.rank == 0:
        say(Finding(name, "right" if ok else "wrong", ok=ok, note=f"rank {comm.rank}: {why}" if why else ""))
    return ok


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
