"""MPI under the stopwatch, through mpi4py's buffer calls.  Which MPI is decided by who starts the worker
(launchers.py); this checks that it is the one meant.  Imports mpi4py: only for its workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI

from hocket.bench.harness.worker import Ordinary
from hocket.collectives.measuring.cases import Case
from hocket.errors import ArgumentError

OPS = {
    "sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR",
    "land": "LAND", "lor": "LOR", "lxor": "LXOR",
}  # fmt: skip
DTYPES = {
    "bool": "C_BOOL", "int8": "INT8_T", "uint8": "UINT8_T", "int16": "INT16_T", "uint16": "UINT16_T",
    "int32": "INT32_T", "uint32": "UINT32_T", "int64": "INT64_T", "uint64": "UINT64_T", "float32": "FLOAT",
    "float64": "DOUBLE", "complex64": "C_FLOAT_COMPLEX", "complex128": "C_DOUBLE_COMPLEX",
}  # fmt: skip
MARKS = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel(R) MPI"}


class MpiSubject(Ordinary):
    """A subject (worker.py) of the MPI that `name` means."""

    def __init__(self, name: str = "") -> None:
        """`name` "": whichever it is."""
        version = " ".join(MPI.Get_library_version().split())
        self.name = name = name or next((each for each, mark in MARKS.items() if mark in version), "mpi")
        if MARKS.get(name.removesuffix("-single"), "") not in version:
            raise ArgumentError(f"mpi4py loaded {version[:60]!r} instead of {name}")
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.about = version.split(", package")[0].split(" MPICH Release")[0]

    def prepare(self, case: Case, given: Any, result: Any) -> Callable[[], object]:
        comm, root, at_root = self.comm, case.root, self.rank == case.root
        x, out = self._buffer(case, given), self._buffer(case, result)
        op = self._op(case) if case.kind.reduces else MPI.SUM
        calls: dict[str, Callable[[], object]] = {
            "allreduce": partial(comm.Allreduce, MPI.IN_PLACE, x, op),
            "reduce": partial(comm.Reduce, x, out if at_root else None, op, root),
            "reduce_scatter": partial(comm.Reduce_scatter_block, x, out, op),
            "broadcast": partial(comm.Bcast, x, root),
            "allgather": partial(comm.Allgather, x, out),
            "gather": partial(comm.Gather, x, out if at_root else None, root),
            "scatter": partial(comm.Scatter, x if at_root else None, out, root),
            "alltoall": partial(comm.Alltoall, x, out),
            "scan": partial(comm.Scan, MPI.IN_PLACE, x, op),
            "exscan": partial(comm.Exscan, MPI.IN_PLACE, x, op),
            "barrier": comm.Barrier,
        }
        return calls[case.collective]

    def barrier(self) -> None:
        self.comm.Barrier()

    def chosen(self) -> dict[str, str]:
        return {}

    def _buffer(self, case: Case, array: Any) -> Any:
        if array is None:
            return None
        if case.dtype not in DTYPES:
            raise ArgumentError(f"{self.name} has no dtype {case.dtype}")
        return [array, getattr(MPI, DTYPES[case.dtype])]

    def _op(self, case: Case) -> Any:
        if case.op not in OPS:
            raise ArgumentError(f"{self.name} has no op {case.op!r}")
        return getattr(MPI, OPS[case.op])
