"""Shutdown, ranks and sizes, what hocket is built of, and the ops: the same for each framework."""

from __future__ import annotations

from hocket.errors import ArgumentError
from hocket.horovod import job

Average, Sum, Adasum, Min, Max, Product = range(6)
OPS = {Sum: "sum", Average: "avg", Adasum: "adasum", Min: "min", Max: "max", Product: "prod"}
"""hocket's ops, by Horovod's numbers."""


def op_of(average: bool | None, op: int | None) -> int:
    """The op: `average` is Horovod's older way to say it."""
    if average is not None:
        if op is not None:
            raise ArgumentError("give op= or average=, not both")
        return Average if average else Sum
    found = Average if op is None else op
    if found not in OPS:
        raise ArgumentError(f"op={op!r} must be hvd.Average, Sum, Adasum, Min, Max or Product")
    return found


def shares(rows: int, size: int) -> list[int]:
    """Share out so many rows: the first ones one more.

    >>> shares(5, 3)
    [2, 2, 1]
    """
    return [rows // size + (rank < rows % size) for rank in range(size)]


def shutdown() -> None:
    """Leave the job.  Tensors under way fail; the others' do if they need this rank.  A process's end does it, too."""
    job.end()


is_initialized = job.begun


def rank() -> int:
    """This rank's number, from 0.  ValueError before init; so for all below."""
    return job.current().comm.rank


def size() -> int:
    """The number of ranks of the job."""
    return job.current().comm.size


def local_rank() -> int:
    """This rank's place among those of its host."""
    return job.current().local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return job.current().local_size


def cross_rank() -> int:
    """This host's place among the hosts that have a rank of this local rank."""
    return job.current().cross_rank


def cross_size() -> int:
    """The number of hosts that have a rank of this local rank."""
    return job.current().cross_size


def is_homogeneous() -> bool:
    """Has each host as many ranks?"""
    return job.current().homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a trace of all tensors to `file_path`, on rank 0, from now on."""
    current = job.current()
    if current.comm.rank == 0:
        current.timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the trace."""
    job.current().timeline.stop()


def mpi_threads_supported() -> bool:
    """May threads call MPI?  ValueError where the ranks did not meet through MPI."""
    if not mpi_enabled():
        raise ArgumentError("this job does not use MPI")
    from mpi4py import MPI

    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Did the ranks meet through MPI?"""
    return job.current().comm.mpi if job.begun() else False


def mpi_built() -> bool:
    """Is there an MPI that hocket could use (mpi4py)?"""
    from importlib.util import find_spec

    return find_spec("mpi4py") is not None


def gloo_enabled() -> bool:
    """Never: hocket has transports of its own."""
    return False


def gloo_built() -> bool:
    """Never."""
    return False


def nccl_built() -> int:
    """0: GPU tensors go over hocket's own transports."""
    return 0


def ddl_built() -> bool:
    """Never."""
    return False


def ccl_built() -> bool:
    """Never."""
    return False


def rocm_built() -> bool:
    """Never."""
    return False
