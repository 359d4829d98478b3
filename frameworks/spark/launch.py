"""`run(session, function)`: a barrier stage whose tasks are the ranks of a job of their own."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pyspark import BarrierTaskContext, cloudpickle

from hocket import hosting
from hocket.arguments import kind, whole
from hocket.errors import ArgumentError
from hocket.spark.store import join


class TaskEnd(NamedTuple):
    """A task's report to the driver: the pickled result, or the pickled error and its traceback."""

    rank: int
    result: bytes
    error: bytes
    traceback: str


class RemoteTraceback(Exception):
    """Where a rank's error was raised: shown as its cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run(
    where: Any, function: Callable[..., Any], /, *args: Any, ranks: int | None = None, timeout: float | None = None,
    **kwargs: Any,
) -> list[Any]:  # fmt: skip
    """Call function on each task of a barrier stage, each one rank; return the results by rank.

    - `where`: a SparkSession or SparkContext: function(comm, *args, **kwargs) on `ranks` tasks (default: as many as
      the cluster has cores, `defaultParallelism`).  Or an RDD: function(comm, rows, *args, **kwargs) on each of its
      partitions, `rows` being an iterator; rank r has partition r.
    - `timeout`: seconds for the ranks to meet once Spark has started them (60).

    If one rank raises, the others' calls end with an error that names it, and that rank's error is raised here, with
    its traceback as the cause.  If a task's process dies, Spark ends the stage and raises its own error.  It starts
    neither again.  Spark waits until all ranks fit at once, and gives up after ten minutes.
    """
    limit = hosting.limit(timeout)
    rdd, rows = _rdd(where, ranks)

    def task(partition: Iterable[Any]) -> Iterator[TaskEnd]:
        comm = join(BarrierTaskContext.get(), limit)  # if this fails, it fails for Spark: others may wait in allGather
        rank, given = comm.rank, (partition, *args) if rows else args
        try:
            result = cloudpickle.dumps(hosting.call(comm, function, *given, **kwargs))
        except Exception as error:
            yield TaskEnd(rank, b"", _pickled(error), traceback.format_exc())
        else:
            yield TaskEnd(rank, result, b"", "")

    ended = sorted(rdd.barrier().mapPartitions(task).collect())
    errors = [_error(TaskEnd(*each)) for each in ended if each[2]]
    if errors:
        raise hosting.cause(errors)
    return [cloudpickle.loads(each[1]) for each in ended]


def _rdd(where: Any, ranks: int | None) -> tuple[Any, bool]:
    """The RDD that the tasks run over, and whether its rows are the caller's."""
    if hasattr(where, "barrier"):
        if ranks is not None:
            raise ArgumentError(
                f"ranks={ranks} goes with a session: omit it for an RDD, which has one rank for each partition"
            )
        return where, True
    context = getattr(where, "sparkContext", where)
    if not hasattr(context, "parallelize"):
        raise ArgumentError(f"{kind(where)} is neither a SparkSession, a SparkContext nor an RDD (pass frame.rdd)")
    n = context.defaultParallelism if ranks is None else whole(ranks, "ranks")
    if n < 1:
        raise ArgumentError(f"ranks={n} must be at least 1")
    return context.parallelize(range(n), n), False


def _pickled(error: Exception) -> bytes:
    """The error; or what it says, where it cannot be pickled."""
    try:
        made = cloudpickle.dumps(error)
        cloudpickle.loads(made)
    except Exception:
        return bytes(cloudpickle.dumps(RuntimeError(f"{type(error).__name__}: {error}")))
    return bytes(made)


def _error(ended: TaskEnd) -> BaseException:
    error: BaseException = cloudpickle.loads(ended.error)
    error.__cause__ = RemoteTraceback(f"on rank {ended.rank}:\n{ended.traceback}")
    return error
