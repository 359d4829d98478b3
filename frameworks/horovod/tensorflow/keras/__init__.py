"""`import hocket.horovod.tensorflow.keras as hvd`: Horovod's interface for tf.keras.

tf.keras is Keras 3, on TensorFlow, or with TF_USE_LEGACY_KERAS=1 Keras 2 (tf-keras).

    optimizer.py    DistributedOptimizer
    callbacks.py    what fit calls
    models.py       load_model, and calls on values
"""

from typing import Any

from hocket.horovod.tensorflow import (
    Average,
    Compression,
    HorovodInternalError,
    ProcessSet,
    Sum,
    add_process_set,
    allgather_object,
    broadcast_object,
    broadcast_variables,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
)
from hocket.horovod.tensorflow import __getattr__ as _refused
from hocket.horovod.tensorflow.keras import callbacks
from hocket.horovod.tensorflow.keras.models import allgather, allreduce, broadcast, load_model, reducescatter
from hocket.horovod.tensorflow.keras.optimizer import DistributedOptimizer

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "HorovodInternalError", "ProcessSet", "Sum", "add_process_set",
    "allgather",
    "allgather_object", "allreduce", "broadcast", "broadcast_object", "broadcast_variables", "callbacks", "ccl_built",
    "cross_rank", "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "init",
    "is_homogeneous", "is_initialized", "load_model", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "reducescatter", "remove_process_set",
    "rocm_built", "shutdown", "size",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return _refused(name)
