"""`import hocket.horovod.tensorflow as hvd`: Horovod's interface for TensorFlow 2.

    basics.py       init
    calls.py        the collectives, in tf.function or outside
    rows.py         those that move rows: alltoall, reducescatter
    gradients.py    DistributedGradientTape, and what a DistributedOptimizer does to gradients
    compression.py  fewer bits on the wire
    variables.py    broadcast_variables, and objects
    keras/          the interface for Keras: Keras 3 on TensorFlow, and Keras 2 (tf-keras)

Calls are made in the order of the program, which is the same on all ranks of a process set, not by name.
"""

from typing import Any

from hocket.horovod.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    ccl_built,
    cross_rank,
    cross_size,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from hocket.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt, UnsupportedError
from hocket.horovod.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hocket.horovod.tensorflow.basics import (
    cuda_built,
    init,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from hocket.horovod.tensorflow.calls import allgather, allreduce, broadcast, grouped_allreduce
from hocket.horovod.tensorflow.compression import Compression
from hocket.horovod.tensorflow.gradients import LOCAL, DistributedGradientTape
from hocket.horovod.tensorflow.rows import alltoall, grouped_allgather, grouped_reducescatter, reducescatter
from hocket.horovod.tensorflow.variables import (
    allgather_object,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)

__all__ = [
    "Adasum", "Average", "Compression", "DistributedGradientTape", "HorovodInternalError", "HostsUpdatedInterrupt",
    "Max", "Min", "ProcessSet", "Product", "Sum", "add_process_set", "allgather", "allgather_object", "allreduce",
    "alltoall", "broadcast", "broadcast_", "broadcast_object", "broadcast_object_fn", "broadcast_variables",
    "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built",
    "gloo_enabled", "grouped_allgather", "grouped_allreduce", "grouped_reducescatter", "init", "is_homogeneous",
    "is_initialized", "local_rank", "local_rank_op", "local_size", "local_size_op", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "process_set_included_op", "rank", "rank_op", "reducescatter",
    "remove_process_set", "rocm_built", "shutdown", "size", "size_op",
]  # fmt: skip
TIMELINE = "start the job by `hocket run --trace FILE`, which records all calls"
REFUSED = {
    "elastic": "save the model in each epoch, and start the job again from it; hocket.horovod.torch has hvd.elastic",
    "join": "give all ranks as many batches: hocket.keras.shard(data)",
    "SyncBatchNormalization": "hocket.keras.Average() makes moving averages the mean of all ranks",
    "PartialDistributedGradientTape": LOCAL,
    "PartialDistributedOptimizer": LOCAL,
    "broadcast_global_variables": "it is for TensorFlow 1; call hvd.broadcast_variables(model.variables, 0)",
    "start_timeline": TIMELINE,
    "stop_timeline": TIMELINE,
}
"""Horovod's names that are not there for TensorFlow, and what to do instead."""


def __getattr__(name: str) -> Any:
    if name == "DistributedOptimizer":  # hvd.keras imports this module
        from hocket.horovod.tensorflow.keras import DistributedOptimizer

        return DistributedOptimizer
    if name in REFUSED:
        raise UnsupportedError(f"hvd.{name} is not there for TensorFlow: {REFUSED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
