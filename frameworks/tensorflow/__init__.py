"""hocket inside TensorFlow 2: collectives of tensors, in tf.function or outside.

    calls.py     `allreduce`, `broadcast`, `allgather`: one stateful tf.py_function for all tensors of a call
    gradients.py all ranks' gradients of a step, for hocket.keras and hocket.horovod.tensorflow
    arrays.py    TensorFlow's memory is only read; results lie in arrays of our own, which it gets without a copy
    causes.py    `cause`: hocket's own error behind TensorFlow's
"""

from hocket.arguments import installed

with installed("tensorflow"):
    from hocket.tensorflow.calls import allgather, allreduce, broadcast
    from hocket.tensorflow.causes import cause

__all__ = ["allgather", "allreduce", "broadcast", "cause"]
