"""The targets of hocket, as data: one line a measurement, and how fast hocket is to be beside each rival.

Ratios are ours / theirs, lower is better.  `mpi`: to every MPI of the run; `gloo` says how many times faster than
Gloo; `limit` is the machine itself: memcpy, or the raw socket.
"""

from __future__ import annotations

from typing import NamedTuple

KB, MB = 1024, 1 << 20


class Target(NamedTuple):
    """`limit`: at most so many times the machine's own time; `own`: our own time for as many elements of float32, which
    an earlier line measures.  None: nothing is promised."""

    ranks: int
    nbytes: int
    mpi: float | None = None
    gloo: float | None = None
    us: float | None = None
    limit: float | None = None
    own: float | None = None
    collective: str = "allreduce"
    dtype: str = "float32"
    transport: str = "shm"
    buffers: str = "numpy"
    busy: bool = False
    """Beside a process that takes all it can get of a core."""
    touch: bool = False
    """Each rank writes its input before each call, and reads its result after it."""


SMALL = [
    Target(2, 8, mpi=0.5, gloo=200, us=0.6),
    Target(2, 0, mpi=0.5, us=0.5, collective="barrier"),
    Target(2, 1 * KB, mpi=0.6, gloo=25),
    Target(2, 64 * KB, mpi=0.65, gloo=25),
    Target(2, 1 * MB, mpi=0.75, gloo=8),
]
BUSY = [Target(2, 8, us=60, busy=True)]
LARGE = [
    Target(2, 16 * MB, mpi=0.85, gloo=6),
    Target(2, 64 * MB, mpi=0.65, gloo=4, limit=1.2),
]
SHARED = [
    Target(2, 16 * MB, mpi=0.7, buffers="shared"),
    Target(2, 64 * MB, mpi=0.55, limit=1.05, buffers="shared"),
    *(
        Target(2, nbytes, mpi=0.8 if collective == "alltoall" else 0.5, collective=collective, buffers="shared")
        for collective in ("allgather", "broadcast", "alltoall")
        for nbytes in (4 * MB, 16 * MB)
    ),
]
LONG = [
    Target(2, 16 * MB, mpi=0.65, collective="broadcast"),
    *(Target(2, nbytes, mpi=1.0, collective="broadcast") for nbytes in (96 * KB, 1 * MB, 3 * MB, 12 * MB)),
    *(Target(3, 4 * MB, mpi=1.0, collective=collective) for collective in ("allgather", "alltoall")),
]
TOUCHED = [
    Target(2, nbytes, mpi=mpi, collective=collective, touch=True)
    for collective, nbytes, mpi in (
        ("allgather", 4 * MB, 0.88),
        ("alltoall", 4 * MB, 0.92),
        ("broadcast", 4 * MB, 0.85),
        ("broadcast", 16 * MB, 0.65),
        ("allreduce", 16 * MB, 0.75),
        ("allreduce", 64 * MB, 0.35),
    )
]
CROWDED = [
    Target(4, 8, mpi=0.5, gloo=50),
    Target(4, 64 * KB, mpi=0.8, gloo=50),
    Target(4, 1 * MB, mpi=0.75, gloo=10),
    Target(4, 16 * MB, mpi=0.7, gloo=4),
    Target(4, 64 * MB, mpi=0.7, gloo=3),
    Target(8, 8, mpi=0.5, us=12),
]
OTHERS = [
    Target(ranks, nbytes, mpi=0.75, gloo=5, collective=collective)
    for ranks in (2, 4)
    for collective in ("allgather", "reduce_scatter", "broadcast", "alltoall")
    for nbytes in (1 * KB, 64 * KB, 4 * MB)
]
HALF = [
    Target(2, 8 * MB),
    *(Target(2, 4 * MB, mpi=0.33, gloo=3, own=0.6, dtype=dtype) for dtype in ("float16", "bfloat16")),
]
TCP = [
    Target(2, 8, mpi=0.9, gloo=25, transport="tcp"),
    Target(2, 64 * KB, mpi=0.75, gloo=15, transport="tcp"),
    *(
        Target(ranks, nbytes, mpi=0.8, gloo=2, limit=1 / 0.85, transport="tcp")
        for ranks in (2, 4)
        for nbytes in (1 * MB, 64 * MB)
    ),
]
TORCH = [target._replace(buffers="torch") for target in SMALL + LARGE if target.collective == "allreduce"]
TARGETS = SMALL + BUSY + TORCH + LARGE + SHARED + CROWDED + OTHERS + LONG + TOUCHED + HALF + TCP
