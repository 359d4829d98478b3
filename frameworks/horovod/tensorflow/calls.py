"""The collectives of tensors, in tf.function or outside, with gradients.

All ranks call them in one order, as their programs are the same; `name` is taken, and not needed.  Outside of a
tf.function errors are HorovodInternalError; out of one TensorFlow raises tf.errors.UnknownError with the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import hocket.tensorflow
from hocket.horovod.basics import OPS, Adasum, Average, Sum, op_of
from hocket.horovod.exceptions import UnsupportedError, in_horovods_words
from hocket.horovod.process_sets import ProcessSet, global_process_set
from hocket.horovod.tensorflow.basics import of_set, place
from hocket.horovod.tensorflow.compression import Compression
from hocket.horovod.tensorflow.rows import grouped_allgather, scaled, slanted


@in_horovods_words()
def allreduce(
    tensor: Any, average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, name: str | None = None, process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Average (or Sum, Min, Max, Product) all ranks' tensors.  IndexedSlices are gathered, and stay such."""
    how = prescale_factor, postscale_factor, name, process_set
    return grouped_allreduce([tensor], average, device_dense, device_sparse, compression, op, *how)[0]


@in_horovods_words()
def grouped_allreduce(
    tensors: Sequence[Any], average: bool | None = None, device_dense: str = "", device_sparse: str = "",
    compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, name: str | None = None, process_set: ProcessSet = global_process_set,
) -> list[Any]:  # fmt: skip
    """Several together, as one call."""
    comm, number = of_set(process_set), op_of(average, op)
    if number == Adasum:
        raise UnsupportedError("hvd.Adasum is not there for TensorFlow: use Average, or hocket.horovod.torch")
    dense = [each for each in tensors if not isinstance(each, tf.IndexedSlices)]
    if len(dense) < len(tensors) and (number not in (Average, Sum) or (prescale_factor, postscale_factor) != (1, 1)):
        raise UnsupportedError("IndexedSlices are summed or averaged, without factors: pass tf.convert_to_tensor(x)")
    packed = [compression.compress(scaled(tf.convert_to_tensor(each), prescale_factor)) for each in dense]
    sent = hocket.tensorflow.allreduce([each for each, _ in packed], OPS[number], comm=comm)
    found = iter([
        scaled(compression.decompress(each, ctx), postscale_factor) for each, (_, ctx) in zip(sent, packed, strict=True)
    ])
    share = comm.size if number == Average else 1
    return [
        _slices(each, share, comm) if isinstance(each, tf.IndexedSlices) else next(found) for each in tensors
    ]  # fmt: skip


@in_horovods_words()
def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """All ranks' rows, in rank order.  Ranks may have different numbers of them.  Gradient: the mean, as in Horovod."""
    return grouped_allgather([tensor], process_set=process_set)[0]


@in_horovods_words()
def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The tensor of rank `root_rank`, as a new tensor.  Gradient: the mean, at the root, as in Horovod."""
    comm = of_set(process_set)
    return slanted(hocket.tensorflow.broadcast(tensor, place(process_set, root_rank), comm=comm), 1 / comm.size)


def _slices(slices: Any, share: int, comm: Any) -> Any:
    values, indices = hocket.tensorflow.allgather((slices.values, slices.indices), comm=comm)
    return tf.IndexedSlices(values / share if share > 1 else values, indices, slices.dense_shape)
