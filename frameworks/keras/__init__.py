"""hocket inside Keras 3, on TensorFlow, JAX and torch: `model.fit` on all ranks, with averaged gradients.

    callbacks.py     `Average`, `Broadcast`, `MetricAverage`
    starting.py      `distribute`: what `Average` does before the first step, for loops of one's own
    averaging.py     `DistributedOptimizer`: an optimizer whose `apply` averages first
    compressing.py   `compress=`
    alike.py         have all ranks the same model?  The first difference, in words
    refusing.py      what cannot work, before it fails elsewhere
    moving.py        moving averages become those of all ranks
    shards.py        `shard`: this rank's part of the data
    causes.py        `cause`: hocket's own error behind the backend's
    backends/        one file for each: only that of the backend in use is imported
"""

from hocket.arguments import installed

with installed("keras"):
    import keras

if int(keras.__version__.partition(".")[0]) < 3:
    raise ImportError(
        f"hocket.keras needs Keras 3, and this is {keras.__version__}: pip install 'keras>=3.12'; for Keras 2 there is "
        "hocket.horovod.tensorflow.keras"
    )

# isort: split
from hocket.keras.averaging import DistributedOptimizer  # noqa: E402
from hocket.keras.callbacks import Average, Broadcast, MetricAverage  # noqa: E402
from hocket.keras.causes import cause  # noqa: E402
from hocket.keras.shards import shard  # noqa: E402
from hocket.keras.starting import distribute  # noqa: E402

__all__ = ["Average", "Broadcast", "DistributedOptimizer", "MetricAverage", "cause", "distribute", "shard"]
