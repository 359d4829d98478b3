"""`import hocket.horovod.tensorflow as hvd`: Horovod's interface for TensorFlow 2.

    basics.py       init
    calls.py        the collectives, in tf.function or outside
    gradients.py    DistributedGradientTape, and what a DistributedOptimizer does to gradients
    compression.py  fewer bits on the wire
    variables.py    broadcast_variables, and objects
    keras/          the interface for Keras: Keras 3 on TensorFlow, and Keras 2 (tf-keras)

Calls are made in the order of the program, which is the same on all ranks, not by name.
"""

from typing import Any

from hocket.errors import ArgumentError
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
from hocket.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hocket.horovod.process_sets import ProcessSet, global_process_set
from hocket.horovod.tensorflow.basics import cuda_built, init
from hocket.horovod.tensorflow.calls import allgather, allreduce, broadcast, grouped_allreduce
from hocket.horovod.tensorflow.compression import Compression
from hocket.horovod.tensorflow.gradients import DistributedGradientTape
from hocket.horovod.tensorflow.variables import allgather_object, broadcast_object, broadcast_variables

__all__ = [
    "Adasum", "Average", "Compression", "DistributedGradientTape", "HorovodInternalError", "HostsUpdatedInterrupt",
    "Max", "Min", "ProcessSet", "Product", "Sum", "allgather", "allgather_object", "allreduce", "broadcast",
    "broadcast_object", "broadcast_variables", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "global_process_set", "gloo_built", "gloo_enabled", "grouped_allreduce", "init", "is_homogeneous",
    "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built",
    "rank", "rocm_built", "shutdown", "size",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise ArgumentError(
            "hvd.elastic is not there for TensorFlow: save the model in each epoch, and start the job again from it; "
            "hocket.horovod.torch has hvd.elastic"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
