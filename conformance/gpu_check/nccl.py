"""NCCL beside hocket: right results by algorithm="nccl", and the times of hocket's own calls, of those, and of NCCL's.

Two ranks have a GPU each where there are two; else they share one, where NCCL allows that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from hocket.conformance.gpu_check.findings import Finding, Options, say, size_text
from hocket.conformance.gpu_check.kinds import Plain
from hocket.conformance.gpu_check.processes import LIMIT, job
from hocket.conformance.gpu_check.times import BLOCKS, SIZES, in_blocks
from hocket.errors import Error
from hocket.system.cuda import driver
from hocket.system.cuda import nccl as library

COUNTS = (1, 1000, 70_001)


def _rank(comm: Any, options: Options) -> None:
    kind, wrong = Plain(comm.rank % driver.count()), 0
    for count in COUNTS:
        host = np.arange(count, dtype=np.float32) % 97 + comm.rank
        x = kind.put(host)
        comm.allreduce(x, algorithm="nccl", timeout=LIMIT)
        wrong += int((kind.get(x) != comm.allreduce(host)).sum())
    where = f"{comm.size} ranks, {min(comm.size, driver.count())} GPU"
    if comm.rank == 0:
        say(Finding(f"allreduce by NCCL, {where}", f"{wrong} wrong", ok=wrong == 0))
    made = comm.membership.queues["gpu", None].context.nccl
    for nbytes, calls in SIZES:
        if nbytes > options.largest or options.quick and nbytes > 1 << 20:
            continue
        x = kind.put(np.ones(nbytes // 4, np.float32))
        at = ctypes.c_void_p(x.address)
        words = (at, at, ctypes.c_size_t(nbytes // 4), 7, 0, ctypes.c_void_p(made.call.comm), ctypes.c_void_p(1))
        ways: dict[str, Callable[[], object]] = {
            "hocket": partial(comm.allreduce, x, timeout=LIMIT),
            "hocket, algorithm='nccl'": partial(comm.allreduce, x, algorithm="nccl", timeout=LIMIT),
            "NCCL": partial(library.library().ncclAllReduce, *words),
        }
        took = {name: in_blocks(comm, call, kind.synchronize, calls, BLOCKS) for name, call in ways.items()}
        for name, seconds in took.items():
            if comm.rank == 0:
                ratio = seconds / took["NCCL"]
                say(Finding(f"allreduce, {size_text(nbytes)}, {where}, {name}", 1e6 * seconds, "us", ratio=ratio))


def nccl(options: Options) -> Iterator[Finding]:
    """Where two ranks share a GPU no verdict depends on it: that is new in NCCL, and wants CUDA's MPS."""
    try:
        version = library.version()
    except Error as why:
        yield Finding("NCCL", "not tried", note=str(why))
        return
    shared = driver.count() < 2
    if shared and version < library.SHARES:
        note = f"NCCL {library.dotted(version)}; 2.30 is the first to allow that"
        yield Finding("NCCL, 2 ranks on one GPU", "refused", note=note)
        return
    for row in job("NCCL", 2, _rank, options, 40, NCCL_MULTI_RANK_GPU_ENABLE="1"):
        yield row._replace(ok=None, value=f"refused: {row.value}") if shared else row
